import java.util.SplittableRandom;
import java.util.concurrent.locks.LockSupport;

/**
 * Work for the garbage collector: a ring of elements in random order, a given size in all, of which
 * a given number per second are replaced.
 *
 * <p>A new element takes over both links of the old one. Links to random elements would be the
 * simpler choice, but then the replaced ones stay reachable through each other and the live size
 * grows without end.
 */
final class Garbage implements Runnable {
    private static final int NODE_BYTES = 24;
    private static final int SLOT_BYTES = 4;
    private static final int ARRAY_BYTES = 16;
    static final int LEAST_ELEMENT = NODE_BYTES + SLOT_BYTES + ARRAY_BYTES;
    private static final long TICK = 1_000_000L;
    private static final double SECOND = 1e9;

    private static final class Element {
        Element next;
        Element previous;
        final byte[] body;

        Element(int length) {
            body = new byte[length];
        }
    }

    private final SplittableRandom random;
    private final int longest;
    private final double perSecond;
    private final Element[] slots;
    private final Thread thread = new Thread(this, "garbage");
    private volatile long live;
    private volatile long replaced;
    private volatile long missed;
    private volatile boolean stopping;

    /** Builds the structure; the sizes are those of a JVM with compressed pointers. */
    Garbage(long liveBytes, double perSecond, int elementBytes, long seed) {
        if (elementBytes < LEAST_ELEMENT) {
            throw new IllegalArgumentException("element_bytes is at least " + LEAST_ELEMENT);
        }
        long room = Runtime.getRuntime().maxMemory();
        if (liveBytes > room / 10 * 9) {
            throw new IllegalArgumentException(
                    "live_bytes " + liveBytes + " is over 90 % of the heap of " + room);
        }
        this.perSecond = perSecond;
        random = new SplittableRandom(seed);
        longest = 2 * (elementBytes - LEAST_ELEMENT);
        slots = new Element[(int) Math.max(1, liveBytes / elementBytes)];
        long bytes = 0;
        for (int i = 0; i < slots.length; i++) {
            Element made = element();
            if (i == 0) {
                made.next = made;
                made.previous = made;
            } else {
                link(made, slots[random.nextInt(i)]);
            }
            slots[i] = made;
            bytes += sizeOf(made);
        }
        live = bytes;
        thread.setDaemon(true);
    }

    void start() {
        thread.start();
    }

    void stop() throws InterruptedException {
        stopping = true;
        thread.join();
    }

    @Override
    public void run() {
        long begin = System.nanoTime();
        long done = 0;
        while (!stopping) {
            long due = (long) ((System.nanoTime() - begin) * perSecond / SECOND);
            // After a long stop the rate is kept, not made up for: a burst is another load.
            long excess = due - done - (long) Math.max(1, perSecond);
            if (excess > 0) {
                missed += excess;
                done += excess;
            }
            for (; done < due && !stopping; done++) {
                replaceOne();
            }
            LockSupport.parkNanos(TICK);
        }
    }

    private void replaceOne() {
        int at = random.nextInt(slots.length);
        Element old = slots[at];
        Element made = element();
        if (old.next == old) {
            made.next = made;
            made.previous = made;
        } else {
            made.next = old.next;
            made.previous = old.previous;
            made.next.previous = made;
            made.previous.next = made;
        }
        slots[at] = made;
        live += sizeOf(made) - sizeOf(old);
        replaced++;
    }

    private Element element() {
        return new Element(random.nextInt(longest + 1));
    }

    private static void link(Element made, Element before) {
        made.previous = before;
        made.next = before.next;
        before.next.previous = made;
        before.next = made;
    }

    private static long sizeOf(Element element) {
        return NODE_BYTES + SLOT_BYTES + (ARRAY_BYTES + element.body.length + 7) / 8 * 8;
    }

    int elements() {
        return slots.length;
    }

    long live() {
        return live;
    }

    long replaced() {
        return replaced;
    }

    long missed() {
        return missed;
    }
}
