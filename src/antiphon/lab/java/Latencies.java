/**
 * Stamps that arrived, until they are asked for: a ring of fixed size that is made once, so that
 * keeping them costs no garbage.
 *
 * <p>When more than so many come in one second, only 1 in 2, in 4 and so on is kept from then on,
 * and of those that have come in the same second: by a hash of their sequence, as in
 * {@code stamps.py}. What is not kept, for this or for want of room, is counted as dropped.
 */
final class Latencies {
    private static final long SECOND = 1_000_000_000L;
    private static final int COLUMNS = 5;
    private static final long SPREAD = 0x9E3779B1L;
    private static final long HASHES = 1L << 32;

    private final long[] cells;
    private final int capacity;
    private final int perSecond;
    private int first;
    private int held;
    /** Of those held, how many are of the second that goes on, and may have to be thinned. */
    private int present;
    private long second;
    private long below = HASHES;
    private long dropped;

    Latencies(int capacity, int perSecond) {
        this.capacity = capacity;
        this.perSecond = perSecond;
        cells = new long[capacity * COLUMNS];
    }

    synchronized void add(long sequence, long source, long intended, long sent, long received) {
        if (hash(sequence) >= below) {
            dropped++;
            return;
        }
        if (received / SECOND > second) {
            second = received / SECOND;
            present = 0;
        }
        if (held == capacity) {
            dropped++;
            return;
        }
        int at = at(held++);
        present++;
        cells[at] = sequence;
        cells[at + 1] = source;
        cells[at + 2] = intended;
        cells[at + 3] = sent;
        cells[at + 4] = received;
        while (present > perSecond && below > 1) {
            thin();
        }
    }

    private static long hash(long sequence) {
        return sequence * SPREAD % HASHES;
    }

    /** Where one is, of those held from the oldest on. */
    private int at(int number) {
        return (first + number) % capacity * COLUMNS;
    }

    private void thin() {
        below /= 2;
        int kept = held - present;
        for (int i = held - present; i < held; i++) {
            if (hash(cells[at(i)]) < below) {
                System.arraycopy(cells, at(i), cells, at(kept++), COLUMNS);
            }
        }
        int gone = held - kept;
        dropped += gone;
        present -= gone;
        held = kept;
    }

    /**
     * The oldest, at most {@code limit}, which are then forgotten here. Without those of the second
     * that goes on, unless this is the {@code end}.
     */
    synchronized Facts take(int limit, boolean end) {
        if (end || System.nanoTime() / SECOND > second) {
            present = 0;
        }
        int count = Math.min(limit, held - present);
        long[][] columns = new long[COLUMNS][count];
        for (int i = 0; i < count; i++) {
            int at = at(i);
            for (int column = 0; column < COLUMNS; column++) {
                columns[column][i] = cells[at + column];
            }
        }
        first = (first + count) % capacity;
        held -= count;
        return new Facts().put("sequence", columns[0]).put("source", columns[1])
                .put("intended_ns", columns[2]).put("sent_ns", columns[3])
                .put("received_ns", columns[4]).put("left", held - present)
                .put("dropped", dropped);
    }
}
