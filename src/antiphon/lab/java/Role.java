import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.FileDescriptor;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryUsage;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;

/**
 * What every program shares: a writer or a reader that carries out orders from standard input, one
 * line of JSON each, and answers each with a line. When the input ends, so does the process.
 *
 * <p>Standard output is kept for the answers: whatever a library prints goes to standard error. The
 * orders are described in {@code programs.py}.
 */
abstract class Role implements Pace.Target {
    private static final int LATENCIES = 65_536;
    private static final int PER_SECOND = 10_000;
    private static final Set<String> AFTER_OPEN = Set.of("connect", "start", "send", "latencies");
    private static final int TRIES = 5;
    private static final long TOGETHER = 500_000L;

    protected final boolean writer;
    /** One that writes and reads. */
    protected final boolean member;
    protected Payload payload;
    protected String host;
    /** Of the socket, in bytes; 0 leaves the system's. */
    protected int buffer;
    protected volatile boolean closing;
    private final List<Sink> sinks = new CopyOnWriteArrayList<>();
    /** Of a group, its views as they came. */
    protected final Happenings views = new Happenings();
    private volatile String fault = "";
    private boolean checking;
    private boolean clocked;
    protected int index;
    private Latencies latencies;
    private Pace pace;
    private Garbage garbage;

    protected Role(String role) {
        if (!role.equals("writer") && !role.equals("reader") && !role.equals("member")) {
            throw new IllegalArgumentException("the role is writer, reader or member: " + role);
        }
        member = role.equals("member");
        writer = member || role.equals("writer");
    }

    /** Make the endpoint; one that reads begins to and returns its address, a writer "". */
    protected abstract String open(Facts order) throws Exception;

    /** Learn where the reader is. Answers with whatever the program knows then. */
    protected abstract void connect(Facts order, Facts answer) throws Exception;

    /** Release everything; may be called before {@code open}. */
    protected abstract void shut() throws Exception;

    /** How many others have said that they have all of this one's messages. */
    protected long acks() {
        return 0;
    }

    /** When the last of them did; 0 before. */
    protected long acknowledged() {
        return 0;
    }

    @Override
    public void flush() throws Exception {}

    /** The counts of a new source. */
    protected final Sink sink() {
        Sink made = new Sink(payload, checking, clocked, latencies);
        sinks.add(made);
        return made;
    }

    protected final void fail(Throwable error) {
        if (!closing && fault.isEmpty()) {
            fault = error.toString();
        }
    }

    protected interface Work {
        void run() throws Exception;
    }

    /** A thread that ends when the endpoint closes, and whose failure is told in the answers. */
    protected final void thread(String name, Work work) {
        Thread made = new Thread(() -> {
            try {
                work.run();
            } catch (Throwable error) {
                fail(error);
            }
        }, name);
        made.setDaemon(true);
        made.start();
    }

    /** Carry out orders until {@code close} or the end of the input. Ends the process. */
    protected final void obey() throws IOException {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader orders = new BufferedReader(new InputStreamReader(
                new FileInputStream(FileDescriptor.in), StandardCharsets.UTF_8));
        String line;
        while ((line = orders.readLine()) != null) {
            Facts answer = new Facts();
            boolean last = false;
            try {
                Facts order = Facts.parse(line);
                String name = order.text("order", "");
                last = name.equals("close");
                answer = handle(name, order);
            } catch (Throwable error) {
                answer.put("error", error.toString());
            }
            answers.println(answer);
            answers.flush();
            if (last) {
                Runtime.getRuntime().halt(0);
            }
        }
        // The parent is gone. No shutdown hooks: a library's farewell may wait for ever.
        Runtime.getRuntime().halt(1);
    }

    private Facts handle(String name, Facts order) throws Exception {
        Facts answer = new Facts();
        if (payload == null && AFTER_OPEN.contains(name)) {
            throw new IllegalStateException("open comes before " + name);
        }
        switch (name) {
            case "open":
                prepare(order);
                return answer.put("address", open(order)).put("pid", ProcessHandle.current().pid());
            case "connect":
                connect(order, answer);
                return answer;
            case "start":
                return start(order, 0);
            case "send":
                return start(order, order.whole("messages", 1));
            case "sample":
                return withFault(sample());
            case "latencies":
                return latencies.take((int) order.whole("limit", 1000), order.truth("end"));
            case "check":
                return withFault(check());
            case "garbage":
                return load(order);
            case "collect":
                System.gc();
                return answer.put("heap_used", heap().getUsed());
            case "stop":
                return stop(order);
            case "close":
                return close();
            default:
                throw new IllegalArgumentException("no such order: " + name);
        }
    }

    private void prepare(Facts order) {
        checking = order.truth("check");
        clocked = order.truth("clocked");
        payload = new Payload((int) order.whole("size", 64), checking);
        index = (int) order.whole("index", 0);
        host = order.text("host", "127.0.0.1");
        buffer = (int) order.whole("buffer", 0);
        latencies = new Latencies((int) order.whole("latencies", LATENCIES),
                (int) order.whole("timed", PER_SECOND));
    }

    private Facts start(Facts order, long messages) {
        if (!writer) {
            throw new IllegalStateException("a reader does not send");
        }
        if (pace != null && !pace.ended()) {
            throw new IllegalStateException("it sends already");
        }
        long stampEvery = (long) (order.number("stamp_ms", 10) * 1e6);
        pace = new Pace(this, payload, index, checking, order.number("rate", 0), messages,
                stampEvery, order.truth("stamp_all"), pace);
        pace.start();
        return new Facts();
    }

    private Facts stop(Facts order) throws InterruptedException {
        boolean ended = pace == null
                || pace.stop(order.number("limit", 5), order.truth("finish"));
        return withFault(new Facts().put("sent", pace == null ? 0 : pace.sent())
                .put("stamped", pace == null ? 0 : pace.stamped()).put("blocked", ended ? 0 : 1));
    }

    private Facts close() throws Exception {
        closing = true;
        if (pace != null) {
            pace.stop(1, false);
        }
        shut();
        return new Facts();
    }

    private Facts load(Facts order) throws InterruptedException {
        if (garbage != null) {
            garbage.stop();
            garbage = null;
        }
        long live = order.whole("live_bytes", 0);
        if (live == 0) {
            return new Facts().put("elements", 0).put("live_bytes", 0);
        }
        garbage = new Garbage(live, order.number("replaced_per_second", 0),
                (int) order.whole("element_bytes", 128), order.whole("seed", 1));
        garbage.start();
        return new Facts().put("elements", garbage.elements()).put("live_bytes", garbage.live());
    }

    private Facts sample() throws IOException {
        long messages = 0;
        long bytes = 0;
        long wrong = 0;
        long now = 0;
        long last = 0;
        // The clock and the counts have to belong together: again if a pause came in between.
        for (int i = 0; i < TRIES; i++) {
            long before = System.nanoTime();
            messages = bytes = wrong = 0;
            for (Sink sink : sinks) {
                messages += sink.messages();
                bytes += sink.bytes();
                wrong += sink.wrong();
                last = Math.max(last, sink.last());
            }
            now = System.nanoTime();
            if (now - before < TOGETHER) {
                break;
            }
        }
        long cpu = ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
        Facts facts = new Facts().put("time_ns", now).put("messages", messages).put("bytes", bytes)
                .put("wrong", wrong).put("sent", pace == null ? 0 : pace.sent())
                .put("sent_bytes", pace == null ? 0 : pace.bytes())
                .put("stamped", pace == null ? 0 : pace.stamped())
                .put("skipped", pace == null ? 0 : pace.missed())
                .put("begun_ns", pace == null ? 0 : pace.begun()).put("last_ns", last)
                .put("acks", acks()).put("acked_ns", acknowledged())
                .put("cpu_ns", cpu).put("cpu", cpu / 1e9).put("resident", resident())
                .put("threads", ManagementFactory.getThreadMXBean().getThreadCount())
                .put("heap_used", heap().getUsed()).put("heap_committed", heap().getCommitted())
                .put("garbage_live", garbage == null ? 0 : garbage.live())
                .put("garbage_replaced", garbage == null ? 0 : garbage.replaced())
                .put("garbage_missed", garbage == null ? 0 : garbage.missed());
        collections(facts);
        views.take(facts);
        return facts;
    }

    /** Collectors that work beside the program have one bean of cycles and one of pauses. */
    private static void collections(Facts facts) {
        long collections = 0;
        long pause = 0;
        for (GarbageCollectorMXBean bean : ManagementFactory.getGarbageCollectorMXBeans()) {
            if (!bean.getName().endsWith("Pauses")) {
                collections += Math.max(0, bean.getCollectionCount());
            }
            if (!bean.getName().endsWith("Cycles")) {
                pause += Math.max(0, bean.getCollectionTime());
            }
        }
        facts.put("collections", collections).put("pause_ms", pause);
    }

    private static MemoryUsage heap() {
        return ManagementFactory.getMemoryMXBean().getHeapMemoryUsage();
    }

    private static long resident() throws IOException {
        for (String line : Files.readAllLines(Paths.get("/proc/self/status"))) {
            if (line.startsWith("VmRSS:")) {
                return Long.parseLong(line.replaceAll("\\D", "")) * 1024;
            }
        }
        return 0;
    }

    private Facts check() {
        long messages = 0;
        long stamped = 0;
        long wrong = 0;
        long lost = 0;
        long disordered = 0;
        List<String> problems = new ArrayList<>();
        for (Sink sink : sinks) {
            messages += sink.messages();
            stamped += sink.stamped();
            wrong += sink.wrong();
            lost += sink.lost();
            disordered += sink.disordered();
            problems.addAll(sink.problems());
        }
        return new Facts().put("sources", sinks.size()).put("messages", messages)
                .put("stamped", stamped).put("wrong", wrong).put("lost", lost)
                .put("disordered", disordered).put("problems", problems.toArray(new String[0]));
    }

    private Facts withFault(Facts facts) {
        String found = pace != null && !pace.fault().isEmpty() ? pace.fault() : fault;
        return found.isEmpty() ? facts : facts.put("error", found);
    }

    /** The port of an address such as 127.0.0.1:7800. */
    protected static int port(String address) {
        return Integer.parseInt(address.substring(address.lastIndexOf(':') + 1));
    }

    protected static String host(String address) {
        return address.substring(0, address.lastIndexOf(':'));
    }
}
