import java.util.concurrent.locks.LockSupport;

/**
 * The sending thread: as many messages as go, or a number per second, and a stamped one between
 * them at every step of its own clock.
 *
 * <p>A writer that was held up sends the stamps that it missed, each with the time at which it
 * should have been sent: left out, the stops would not show in the delays. They take turns with the
 * other messages, and a second behind the rest is only counted: what is slower than its stamps would
 * never send anything else. Of a given number of messages the stamped ones are a part.
 *
 * <p>By a timetable every message may carry its stamp instead, if it is long enough, and none comes
 * between them. Those that were due more than a second ago are not sent any more, only counted.
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
    private volatile long plain;
    private volatile long missed;
    private volatile long begun;

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
            plain = before.plain;
            missed = before.missed;
            begun = before.begun;
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
        if (begun == 0) {
            begun = System.nanoTime();
        }
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
        long first = sent;
        long plainFirst = plain;
        while (!stopping && left(first)) {
            long now = System.nanoTime();
            if (now >= nextStamp) {
                sendStamped(nextStamp);
                nextStamp += stampEvery;
                if (now - nextStamp > LATEST) {
                    long skipped = (now - nextStamp) / stampEvery;
                    missed += skipped;
                    nextStamp += skipped * stampEvery;
                }
                if (!left(first)) {
                    return;
                }
            }
            long due = rate > 0 ? begin + (long) ((plain - plainFirst) * SECOND / rate) : now;
            if (due > now) {
                target.flush();
                LockSupport.parkNanos(Math.min(due, nextStamp) - now);
                continue;
            }
            send(checking ? payload.checked((int) plain) : same);
            plain++;
        }
    }

    private void keepTimetable() throws Exception {
        long begin = System.nanoTime();
        long number = 0;
        long first = sent;
        while (!stopping && left(first)) {
            long due = begin + (long) (number * SECOND / rate);
            long now = System.nanoTime();
            if (due > now) {
                target.flush();
                LockSupport.parkNanos(Math.min(due - now, LATEST / 10));
            } else if (now - due > LATEST) {
                long next = (long) ((now - LATEST - begin) * rate / SECOND) + 1;
                missed += next - number;
                number = next;
            } else {
                sendStamped(due);
                number++;
            }
        }
    }

    /** Whether there is something to send, when so many had been sent at the begin. */
    private boolean left(long first) {
        return messages == 0 || sent - first < messages;
    }

    private void sendStamped(long due) throws Exception {
        send(payload.stamped(source, (int) stamped, due, System.nanoTime()));
        stamped++;
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

    /** Messages with a stamp that were due and not sent. */
    long missed() {
        return missed;
    }

    /** When it began to send; 0 before. */
    long begun() {
        return begun;
    }

    String fault() {
        return fault;
    }
}
