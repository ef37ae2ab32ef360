import java.util.concurrent.locks.LockSupport;

/**
 * The sending thread: as many messages as go, or a number per second, and a stamped one between
 * them at every step of its own clock.
 *
 * <p>A writer that was held up sends the stamps that it missed, each with the time at which it
 * should have been sent: left out, the stops would not show in the delays. They take turns with the
 * other messages, and a second behind the rest is only counted: what is slower than its stamps would
 * never send anything else.
 *
 * <p>By a timetable every message may carry its stamp instead, if it is long enough, and none comes
 * between them. One that is due more than a second ago begins the timetable anew.
 */
final class Pace implements Runnable {
    private static final double SECOND = 1e9;
    private static final long LATEST = 1_000_000_000L;

    /** Where messages go. Called by the sending thread alone; the array is never changed again. */
    interface Target {
        void send(byte[] data) throws Exception;

        void flush() throws Exception;
    }

    private final Target target;
    private final Payload payload;
    private final int source;
    private final boolean checking;
    private final double rate;
    private final long messages;
    private final long stampEvery;
    private final boolean stampAll;
    private final Thread thread = new Thread(this, "send");
    private volatile boolean stopping;
    private volatile String fault = "";
    // Written by the sending thread alone, read by the one that samples.
    private volatile long sent;
    private volatile long bytes;
    private volatile long stamped;
    private volatile long beside;
    private volatile long missed;

    /**
     * {@code rate} 0 is as fast as it goes; {@code messages} 0 is until stopped. The counts, and
     * the numbers of the messages, go on where {@code before} ended, if it is not null.
     */
    Pace(Target target, Payload payload, int source, boolean checking, double rate, long messages,
            long stampEvery, boolean stampAll, Pace before) {
        this.source = source;
        if (before != null) {
            sent = before.sent;
            bytes = before.bytes;
            stamped = before.stamped;
            beside = before.beside;
            missed = before.missed;
        }
        this.target = target;
        this.payload = payload;
        this.checking = checking;
        this.rate = rate;
        this.messages = messages;
        this.stampEvery = stampEvery;
        this.stampAll = stampAll && rate > 0 && payload.plainSize == payload.stampedSize;
        thread.setDaemon(true);
    }

    void start() {
        thread.start();
    }

    /** Whether it ended in time. {@code finish} lets a given number be sent to the last. */
    boolean stop(double seconds, boolean finish) throws InterruptedException {
        stopping = stopping || !finish;
        thread.join(Math.max(1, (long) (seconds * 1e3)));
        return !thread.isAlive();
    }

    @Override
    public void run() {
        try {
            if (stampAll) {
                keepTimetable();
            } else {
                work();
            }
            target.flush();
        } catch (Throwable error) {
            fault = error.toString();
        }
    }

    private void work() throws Exception {
        byte[] same = payload.plain();
        long begin = System.nanoTime();
        long nextStamp = stampEvery > 0 ? begin : Long.MAX_VALUE;
        long before = sent - beside;
        long plain = 0;
        while (!stopping && (messages == 0 || plain < messages)) {
            long now = System.nanoTime();
            if (now >= nextStamp) {
                send(payload.stamped(source, (int) stamped, nextStamp, System.nanoTime()));
                stamped++;
                beside++;
                nextStamp += stampEvery;
                if (now - nextStamp > LATEST) {
                    long skipped = (now - nextStamp) / stampEvery;
                    missed += skipped;
                    nextStamp += skipped * stampEvery;
                }
            }
            long due = rate > 0 ? begin + (long) (plain * SECOND / rate) : now;
            if (due > now) {
                target.flush();
                LockSupport.parkNanos(Math.min(due, nextStamp) - now);
                continue;
            }
            send(checking ? payload.checked((int) (before + plain)) : same);
            plain++;
        }
    }

    private void keepTimetable() throws Exception {
        long begin = System.nanoTime();
        long number = 0;
        long left = messages == 0 ? Long.MAX_VALUE : messages;
        while (!stopping && left > 0) {
            long due = begin + (long) (number * SECOND / rate);
            long wait = due - System.nanoTime();
            if (wait > 0) {
                target.flush();
                LockSupport.parkNanos(Math.min(wait, LATEST / 10));
            } else if (-wait > LATEST) {
                begin = System.nanoTime();
                number = 0;
            } else {
                send(payload.stamped(source, (int) stamped, due, System.nanoTime()));
                stamped++;
                number++;
                left--;
            }
        }
    }

    private void send(byte[] data) throws Exception {
        target.send(data);
        bytes += data.length;
        sent++;
    }

    boolean ended() {
        return !thread.isAlive();
    }

    long sent() {
        return sent;
    }

    long bytes() {
        return bytes;
    }

    long stamped() {
        return stamped;
    }

    /** Of those, how many came between the messages that were asked for. */
    long beside() {
        return beside;
    }

    /** Stamps that were due and not sent. */
    long missed() {
        return missed;
    }

    String fault() {
        return fault;
    }
}
