import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/**
 * What has come from one source: counted, its stamps kept, and verified if asked for.
 *
 * <p>One thread at a time calls {@code take}; any thread reads the counts. They are written with
 * release and read with acquire: a volatile write per message would be a locked instruction.
 */
final class Sink {
    private static final int PROBLEMS = 10;
    private static final VarHandle MESSAGES;
    private static final VarHandle BYTES;
    private static final VarHandle LAST;

    static {
        try {
            MethodHandles.Lookup lookup = MethodHandles.lookup();
            MESSAGES = lookup.findVarHandle(Sink.class, "messages", long.class);
            BYTES = lookup.findVarHandle(Sink.class, "bytes", long.class);
            LAST = lookup.findVarHandle(Sink.class, "last", long.class);
        } catch (ReflectiveOperationException error) {
            throw new ExceptionInInitializerError(error);
        }
    }

    private final Payload payload;
    private final boolean checking;
    private final boolean clocked;
    private final Latencies latencies;
    private final List<String> problems = new ArrayList<>();
    private long messages;
    private long bytes;
    private long last;
    private volatile long wrong;
    private volatile long stamped;
    private volatile long lost;
    private volatile long disordered;
    private int nextPlain;
    private int nextStamped;

    /** {@code clocked}: it knows when the last one came, for the price of a clock with each. */
    Sink(Payload payload, boolean checking, boolean clocked, Latencies latencies) {
        this.payload = payload;
        this.checking = checking;
        this.clocked = clocked;
        this.latencies = latencies;
    }

    void take(byte[] data, int offset, int length) {
        boolean special = length == 0 || data[offset] == Payload.STAMPED || checking;
        if (special || length != payload.plainSize) {
            byte[] copy = new byte[length];
            System.arraycopy(data, offset, copy, 0, length);
            inspect(copy);
        }
        count(length);
    }

    /** The bytes between position and limit. */
    void take(ByteBuffer data) {
        int length = data.remaining();
        boolean special = length == 0 || data.get(data.position()) == Payload.STAMPED || checking;
        if (special || length != payload.plainSize) {
            byte[] copy = new byte[length];
            data.get(copy);
            inspect(copy);
        }
        count(length);
    }

    private void count(int length) {
        if (clocked) {
            // Before it counts: whoever sees the last message counted sees its time.
            LAST.setOpaque(this, System.nanoTime());
        }
        BYTES.setRelease(this, bytes + length);
        MESSAGES.setRelease(this, messages + 1);
    }

    private void inspect(byte[] data) {
        long received = System.nanoTime();
        boolean stamp = data.length == payload.stampedSize && data[0] == Payload.STAMPED;
        if (!stamp && data.length != payload.plainSize) {
            problem("a message of " + data.length + " bytes");
            return;
        }
        if (checking && !payload.whole(data)) {
            problem("message " + messages + ", of " + data.length + " bytes, is not what was sent");
            return;
        }
        if (stamp) {
            latencies.add(Integer.toUnsignedLong(Payload.sequence(data)), Payload.source(data),
                    Payload.intended(data), Payload.sent(data), received);
            stamped++;
        }
        if (checking) {
            int expected = stamp ? nextStamped : nextPlain;
            int found = Payload.sequence(data);
            int ahead = found - expected;
            if (ahead < 0) {
                disordered++;
                return;
            }
            lost += ahead;
            if (stamp) {
                nextStamped = found + 1;
            } else {
                nextPlain = found + 1;
            }
        }
    }

    private void problem(String what) {
        wrong++;
        synchronized (problems) {
            if (problems.size() < PROBLEMS) {
                problems.add(what);
            }
        }
    }

    long messages() {
        return (long) MESSAGES.getAcquire(this);
    }

    long bytes() {
        return (long) BYTES.getAcquire(this);
    }

    /** When the last message came, if that was asked for; to be read after their number. */
    long last() {
        return (long) LAST.getOpaque(this);
    }

    long wrong() {
        return wrong;
    }

    long stamped() {
        return stamped;
    }

    /** Numbers that were passed over; one that comes late counts as disordered as well. */
    long lost() {
        return lost;
    }

    long disordered() {
        return disordered;
    }

    List<String> problems() {
        synchronized (problems) {
            return new ArrayList<>(problems);
        }
    }
}
