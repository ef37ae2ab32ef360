import java.io.IOException;
import java.net.DatagramPacket;
import java.net.DatagramSocket;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.HashMap;
import java.util.Map;

/**
 * UDP with {@code DatagramSocket}: one datagram per message, nothing repeated and nobody held back.
 * What was sent less what was received is lost; a paced writer loses less.
 */
final class Udp extends Role {
    private static final int LARGEST = 65_507;

    private DatagramSocket socket;
    private final DatagramPacket outgoing = new DatagramPacket(new byte[0], 0);

    private Udp(String role) {
        super(role);
    }

    public static void main(String[] arguments) throws IOException {
        new Udp(arguments[0]).obey();
    }

    @Override
    protected String open(Facts order) throws IOException {
        if (payload.largest() > LARGEST) {
            throw new IllegalArgumentException("a datagram holds at most " + LARGEST + " bytes");
        }
        int port = writer ? 0 : (int) order.whole("port", 0);
        socket = new DatagramSocket(new InetSocketAddress(host, port));
        if (buffer > 0) {
            if (writer) {
                socket.setSendBufferSize(buffer);
            }
            if (!writer || member) {
                socket.setReceiveBufferSize(buffer);
            }
        }
        if (writer && !member) {
            return "";
        }
        thread("receive", this::receive);
        return host + ":" + socket.getLocalPort();
    }

    private void receive() throws IOException {
        Map<SocketAddress, Sink> sources = new HashMap<>();
        InetAddress lastAddress = null;
        int lastPort = 0;
        Sink sink = null;
        byte[] space = new byte[LARGEST];
        DatagramPacket packet = new DatagramPacket(space, space.length);
        while (!closing) {
            packet.setLength(space.length);
            socket.receive(packet);
            // Most come from where the last one came from: no address is made for those.
            if (packet.getPort() != lastPort || !packet.getAddress().equals(lastAddress)) {
                lastPort = packet.getPort();
                lastAddress = packet.getAddress();
                sink = sources.computeIfAbsent(packet.getSocketAddress(), key -> sink());
            }
            sink.take(space, packet.getOffset(), packet.getLength());
        }
    }

    @Override
    protected void connect(Facts order, Facts answer) throws IOException {
        if (writer) {
            String address = order.text("address", "");
            InetSocketAddress other = new InetSocketAddress(host(address), port(address));
            // Of a member it would wait for the thread that receives.
            if (!member) {
                socket.connect(other);
            }
            outgoing.setSocketAddress(other);
        }
    }

    @Override
    public void send(byte[] data) throws IOException {
        outgoing.setData(data);
        socket.send(outgoing);
    }

    @Override
    protected void shut() {
        if (socket != null) {
            socket.close();
        }
    }
}
