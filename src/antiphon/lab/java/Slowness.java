import java.util.concurrent.locks.LockSupport;

/**
 * Makes a receiver slow: it takes so many messages a second and no more.
 *
 * <p>Time that it had nothing to do is not made up for, as it would not be in a receiver that is
 * slow because each message costs it something.
 */
final class Slowness {
    private static final double SECOND = 1e9;

    private final long gap;
    private long free = System.nanoTime();

    Slowness(double perSecond) {
        gap = (long) (SECOND / perSecond);
    }

    /** Returns when the next message may be taken. Any thread may call it. */
    void hold() {
        long until;
        synchronized (this) {
            free = Math.max(free, System.nanoTime()) + gap;
            until = free;
        }
        for (long left = until - System.nanoTime(); left > 0; left = until - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }
}
