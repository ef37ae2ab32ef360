/**
 * Stamps that arrived, until they are asked for: a ring of fixed size that is made once, so that
 * keeping them costs no garbage.
 *
 * <p>More than {@link #PER_SECOND} in one second, or more than fit, are dropped and counted.
 */
final class Latencies {
    static final int PER_SECOND = 10_000;
    private static final long SECOND = 1_000_000_000L;
    private static final int COLUMNS = 5;

    private final long[] cells;
    private final int capacity;
    private int first;
    private int held;
    private long secondStart;
    private int inSecond;
    private long dropped;

    Latencies(int capacity) {
        this.capacity = capacity;
        cells = new long[capacity * COLUMNS];
        secondStart = System.nanoTime();
    }

    synchronized void add(long sequence, long source, long intended, long sent, long received) {
        if (received - secondStart >= SECOND) {
            secondStart = received;
            inSecond = 0;
        }
        if (held == capacity || inSecond == PER_SECOND) {
            dropped++;
            return;
        }
        inSecond++;
        int at = (first + held++) % capacity * COLUMNS;
        cells[at] = sequence;
        cells[at + 1] = source;
        cells[at + 2] = intended;
        cells[at + 3] = sent;
        cells[at + 4] = received;
    }

    /** The oldest, at most {@code limit}, which are then forgotten here. */
    synchronized Facts take(int limit) {
        int count = Math.min(limit, held);
        long[][] columns = new long[COLUMNS][count];
        for (int i = 0; i < count; i++) {
            int at = (first + i) % capacity * COLUMNS;
            for (int column = 0; column < COLUMNS; column++) {
                columns[column][i] = cells[at + column];
            }
        }
        first = (first + count) % capacity;
        held -= count;
        return new Facts().put("sequence", columns[0]).put("source", columns[1])
                .put("intended_ns", columns[2]).put("sent_ns", columns[3])
                .put("received_ns", columns[4]).put("left", held).put("dropped", dropped);
    }
}
