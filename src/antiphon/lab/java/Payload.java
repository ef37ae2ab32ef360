import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/**
 * The bytes of a message, as both ends know them.
 *
 * <pre>
 * plain     the pattern 1, 2 .. 251, 1, 2 .. to the end
 * checked   the pattern, with a sequence number (u32, little endian) at byte 4
 * stamped   0xFF, a zero, source (u16), sequence (u32), intended_ns (i64), sent_ns (i64), all
 *           little endian, then the pattern as at its place in a plain message
 * </pre>
 *
 * <p>A message that is too short for its number or its stamp is made just long enough.
 */
final class Payload {
    static final byte STAMPED = (byte) 0xFF;
    static final int CHECKED_BYTES = 8;
    static final int STAMP_BYTES = 24;
    private static final int SOURCE_AT = 2;
    private static final int SEQUENCE_AT = 4;
    private static final int INTENDED_AT = 8;
    private static final int SENT_AT = 16;

    final int plainSize;
    final int stampedSize;
    private final byte[] pattern;

    Payload(int size, boolean checked) {
        if (size < 1) {
            throw new IllegalArgumentException("size is " + size + "; at least 1 is needed");
        }
        plainSize = checked ? Math.max(size, CHECKED_BYTES) : size;
        stampedSize = Math.max(size, STAMP_BYTES);
        pattern = new byte[Math.max(plainSize, stampedSize)];
        for (int i = 0; i < pattern.length; i++) {
            pattern[i] = (byte) (i % 251 + 1);
        }
    }

    int largest() {
        return pattern.length;
    }

    byte[] plain() {
        return Arrays.copyOf(pattern, plainSize);
    }

    byte[] checked(int sequence) {
        byte[] data = plain();
        little(data).putInt(SEQUENCE_AT, sequence);
        return data;
    }

    byte[] stamped(int source, int sequence, long intended, long sent) {
        byte[] data = Arrays.copyOf(pattern, stampedSize);
        little(data).putShort(0, (short) 0xFF).putShort(SOURCE_AT, (short) source)
                .putInt(SEQUENCE_AT, sequence).putLong(INTENDED_AT, intended)
                .putLong(SENT_AT, sent);
        return data;
    }

    static int source(byte[] data) {
        return Short.toUnsignedInt(little(data).getShort(SOURCE_AT));
    }

    static int sequence(byte[] data) {
        return little(data).getInt(SEQUENCE_AT);
    }

    static long intended(byte[] data) {
        return little(data).getLong(INTENDED_AT);
    }

    static long sent(byte[] data) {
        return little(data).getLong(SENT_AT);
    }

    /** Whether every byte that is no number is the one that was sent. */
    boolean whole(byte[] data) {
        if (data[0] == STAMPED) {
            return data.length == stampedSize && data[1] == 0
                    && same(data, STAMP_BYTES, stampedSize);
        }
        return data.length == plainSize && same(data, 0, SEQUENCE_AT)
                && same(data, CHECKED_BYTES, plainSize);
    }

    private boolean same(byte[] data, int from, int to) {
        return Arrays.equals(data, from, to, pattern, from, to);
    }

    private static ByteBuffer little(byte[] data) {
        return ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN);
    }
}
