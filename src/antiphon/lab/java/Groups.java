import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicLong;
import javax.xml.parsers.DocumentBuilderFactory;
import org.jgroups.Address;
import org.jgroups.Channel;
import org.jgroups.Event;
import org.jgroups.JChannel;
import org.jgroups.Message;
import org.jgroups.ReceiverAdapter;
import org.jgroups.stack.IpAddress;
import org.w3c.dom.Document;
import org.w3c.dom.Element;

/**
 * A group of JGroups 2.12: a writer sends to all members, a reader counts what each of them sends.
 *
 * <p>The stacks are those in the jar, {@code udp.xml} and {@code tcp.xml}, as their users get them,
 * but for addresses and ports. Thus the UDP stack joins by multicast to a port of its own with a
 * time to live of 0, and on the loopback nothing leaves the machine. The paper's are these with
 * another flow control, or none, with its way to find failures, and with the paper's times. Of those
 * one is gone: this GMS takes no notice of a join_retry_timeout.
 *
 * <p>Of members, the first begins the group, and the others join when they connect. Where a number
 * of messages is expected of each sender, whoever has all of them tells it so, by an empty one.
 */
final class Groups extends Role {
    private static final String MULTICAST = "239.255.77.77";
    private static final Set<String> STACKS =
            Set.of("udp", "tcp", "paper-udp", "paper-udp-fc", "paper-tcp");
    /** Layer, attribute and value, as the paper has them. */
    private static final String[][] TIMES = {
        {"PING", "timeout", "3000"}, {"PING", "num_initial_members", "6"},
        {"TCPPING", "timeout", "3000"}, {"TCPPING", "num_initial_members", "6"},
        {"FD", "timeout", "5000"}, {"VERIFY_SUSPECT", "timeout", "1500"},
        {"pbcast.NAKACK", "retransmit_timeout", "3000"}, {"pbcast.NAKACK", "gc_lag", "10"},
        {"pbcast.STABLE", "desired_avg_gossip", "10000"}, {"UNICAST", "timeout", "5000"},
    };
    private static final String PAPER_TTL = "32";
    private static final long PATIENCE = 30_000_000_000L;

    private final Map<Address, Sink> sources = new ConcurrentHashMap<>();
    private final Object viewed = new Object();
    private String stack;
    private String name;
    private JChannel channel;
    private Slowness slowness;
    private long expected;
    private final BlockingQueue<Address> complete = new LinkedBlockingQueue<>();
    private final AtomicLong acks = new AtomicLong();
    private volatile long acknowledged;

    private Groups(String role) {
        super(role);
    }

    public static void main(String[] arguments) throws IOException {
        new Groups(arguments[0]).obey();
    }

    @Override
    protected String open(Facts order) throws Exception {
        stack = order.text("stack", "udp");
        if (!STACKS.contains(stack)) {
            throw new IllegalArgumentException("no such stack: " + stack);
        }
        name = order.text("channel", "antiphon-lab");
        double slow = order.number("slow", 0);
        slowness = slow > 0 ? new Slowness(slow) : null;
        expected = order.whole("expected", 0);
        if (expected > 0) {
            // Not on the threads that receive: they are not to wait for credits.
            thread("acknowledge", () -> {
                while (!closing) {
                    Address sender = complete.take();
                    channel.send(new Message(sender, null, new byte[0]));
                }
            });
        }
        return writer && !(member && index == 0) ? "" : join(order.text("address", ""));
    }

    @Override
    protected void connect(Facts order, Facts answer) throws Exception {
        if (channel == null) {
            answer.put("address", join(order.text("address", "")));
        }
        int wanted = (int) order.whole("members", 2);
        long deadline = System.nanoTime() + PATIENCE;
        synchronized (viewed) {
            while (channel.getView().size() < wanted) {
                long left = (deadline - System.nanoTime()) / 1_000_000;
                if (left <= 0) {
                    throw new IOException("not " + wanted + " members: " + channel.getView());
                }
                viewed.wait(Math.min(left, 100));
            }
        }
        answer.put("members", channel.getView().size());
        if (order.truth("layers")) {
            answer.put("layers", channel.printProtocolSpec(true));
        }
    }

    /** Join the members at the given addresses, comma separated; none begins a group. */
    private String join(String addresses) throws Exception {
        System.setProperty("jgroups.bind_addr", host);
        Document document;
        boolean udp = stack.contains("udp");
        try (InputStream in = JChannel.class.getResourceAsStream(udp ? "/udp.xml" : "/tcp.xml")) {
            document = DocumentBuilderFactory.newInstance().newDocumentBuilder().parse(in);
        }
        if (stack.startsWith("paper-")) {
            asInThePaper(document);
        }
        int port = freePort();
        if (udp) {
            port = addresses.isEmpty() ? port : port(addresses.split(",")[0]);
            Element transport = element(document, "UDP");
            transport.setAttribute("mcast_addr", MULTICAST);
            transport.setAttribute("mcast_port", Integer.toString(port));
            transport.setAttribute("ip_ttl", timeToLive());
        } else {
            Element transport = element(document, "TCP");
            transport.setAttribute("bind_port", Integer.toString(port));
            transport.setAttribute("enable_diagnostics", "false");
            StringBuilder hosts = new StringBuilder(host + "[" + port + "]");
            for (String address : addresses.isEmpty() ? new String[0] : addresses.split(",")) {
                hosts.append(',').append(host(address)).append('[').append(port(address));
                hosts.append(']');
            }
            element(document, "TCPPING").setAttribute("initial_hosts", hosts.toString());
        }
        element(document, "pbcast.GMS").setAttribute("print_local_addr", "false");
        channel = new JChannel(document.getDocumentElement());
        channel.setOpt(Channel.LOCAL, false);
        channel.setReceiver(new Receiver());
        channel.connect(name);
        if (udp) {
            return MULTICAST + ":" + port;
        }
        IpAddress own = (IpAddress) channel.downcall(
                new Event(Event.GET_PHYSICAL_ADDRESS, channel.getAddress()));
        return host + ":" + own.getPort();
    }

    private String timeToLive() {
        if (host.startsWith("127.")) {
            return "0";
        }
        return stack.startsWith("paper-") ? PAPER_TTL : "1";
    }

    private void asInThePaper(Document document) {
        Element all = element(document, "FD_ALL");
        if (all != null) {
            all.getParentNode().replaceChild(document.createElement("FD"), all);
        }
        String join = stack.contains("tcp") ? "3000" : "5000";
        element(document, "pbcast.GMS").setAttribute("join_timeout", join);
        for (String[] one : TIMES) {
            Element layer = element(document, one[0]);
            if (layer != null) {
                layer.setAttribute(one[1], one[2]);
            }
        }
        Element multicast = element(document, "MFC");
        if (stack.equals("paper-udp-fc")) {
            Element credits = document.createElement("FC");
            credits.setAttribute("max_credits", "200000");
            credits.setAttribute("min_credits", "5200");
            multicast.getParentNode().insertBefore(credits, multicast);
        }
        multicast.getParentNode().removeChild(multicast);
        Element unicast = element(document, "UFC");
        unicast.getParentNode().removeChild(unicast);
    }

    /** On threads of JGroups; one at a time for each sender. */
    private final class Receiver extends ReceiverAdapter {
        @Override
        public void receive(Message message) {
            if (expected > 0 && message.getLength() == 0) {
                acknowledged = System.nanoTime();
                acks.incrementAndGet();
                return;
            }
            Sink sink = sources.get(message.getSrc());
            if (sink == null) {
                sink = sources.computeIfAbsent(message.getSrc(), source -> sink());
            }
            sink.take(message.getRawBuffer(), message.getOffset(), message.getLength());
            if (slowness != null) {
                slowness.hold();
            }
            if (expected > 0 && sink.messages() == expected) {
                complete.add(message.getSrc());
            }
        }

        @Override
        public void viewAccepted(org.jgroups.View view) {
            views.add(view.getVid().getId() + ", " + view.size() + " members");
            synchronized (viewed) {
                viewed.notifyAll();
            }
        }
    }

    @Override
    protected long acks() {
        return acks.get();
    }

    @Override
    protected long acknowledged() {
        return acknowledged;
    }

    private int freePort() throws IOException {
        try (ServerSocket probe = new ServerSocket(0, 1, InetAddress.getByName(host))) {
            return probe.getLocalPort();
        }
    }

    private static Element element(Document document, String tag) {
        return (Element) document.getElementsByTagName(tag).item(0);
    }

    @Override
    public void send(byte[] data) throws Exception {
        channel.send(new Message(null, null, data));
    }

    @Override
    protected void shut() {
        if (channel != null) {
            channel.close();
        }
    }
}
