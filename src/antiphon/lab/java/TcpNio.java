import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Iterator;

/**
 * TCP with channels of {@code java.nio} and direct buffers, in the frames of {@link TcpNet}. The
 * reader is one thread with a selector; it sees each message in place, without a copy. The writer's
 * channel blocks: it has nothing else to do when the other side is slow.
 */
final class TcpNio extends Role {
    private static final int LENGTH_BYTES = 4;
    private static final int BUFFER = 64 * 1024;

    private ServerSocketChannel server;
    private Selector selector;
    private SocketChannel channel;
    private ByteBuffer out;

    private static final class Connection {
        final Sink sink;
        final ByteBuffer in;

        Connection(Sink sink, int capacity) {
            this.sink = sink;
            in = ByteBuffer.allocateDirect(capacity);
        }
    }

    private TcpNio(String role) {
        super(role);
    }

    public static void main(String[] arguments) throws IOException {
        new TcpNio(arguments[0]).obey();
    }

    private int capacity() {
        return Math.max(BUFFER, LENGTH_BYTES + payload.largest());
    }

    @Override
    protected String open(Facts order) throws IOException {
        if (writer && !member) {
            return "";
        }
        server = ServerSocketChannel.open();
        if (buffer > 0) {
            server.setOption(StandardSocketOptions.SO_RCVBUF, buffer);
        }
        server.bind(new InetSocketAddress(host, (int) order.whole("port", 0)));
        server.configureBlocking(false);
        selector = Selector.open();
        server.register(selector, SelectionKey.OP_ACCEPT);
        thread("select", this::select);
        return host + ":" + server.socket().getLocalPort();
    }

    private void select() throws IOException {
        while (!closing) {
            selector.select();
            Iterator<SelectionKey> ready = selector.selectedKeys().iterator();
            while (ready.hasNext()) {
                SelectionKey key = ready.next();
                ready.remove();
                if (key.isAcceptable()) {
                    accept();
                } else {
                    receive(key);
                }
            }
        }
    }

    private void accept() throws IOException {
        SocketChannel accepted = server.accept();
        if (accepted != null) {
            accepted.configureBlocking(false);
            accepted.register(selector, SelectionKey.OP_READ, new Connection(sink(), capacity()));
        }
    }

    private static void receive(SelectionKey key) throws IOException {
        SocketChannel from = (SocketChannel) key.channel();
        Connection connection = (Connection) key.attachment();
        ByteBuffer in = connection.in;
        if (from.read(in) < 0) {
            from.close();
            return;
        }
        in.flip();
        while (in.remaining() >= LENGTH_BYTES) {
            int length = in.getInt(in.position());
            if (length < 0 || length > in.capacity() - LENGTH_BYTES) {
                throw new IOException("a frame of " + length + " bytes");
            }
            if (in.remaining() < LENGTH_BYTES + length) {
                break;
            }
            int begin = in.position() + LENGTH_BYTES;
            int arrived = in.limit();
            in.position(begin).limit(begin + length);
            connection.sink.take(in);
            in.limit(arrived).position(begin + length);
        }
        in.compact();
    }

    @Override
    protected void connect(Facts order, Facts answer) throws IOException {
        if (!writer) {
            return;
        }
        String address = order.text("address", "");
        channel = SocketChannel.open();
        if (buffer > 0) {
            channel.setOption(StandardSocketOptions.SO_SNDBUF, buffer);
        }
        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        channel.connect(new InetSocketAddress(host(address), port(address)));
        out = ByteBuffer.allocateDirect(capacity());
    }

    @Override
    public void send(byte[] data) throws IOException {
        if (out.remaining() < LENGTH_BYTES + data.length) {
            flush();
        }
        out.putInt(data.length).put(data);
    }

    @Override
    public void flush() throws IOException {
        out.flip();
        while (out.hasRemaining()) {
            channel.write(out);
        }
        out.clear();
    }

    @Override
    protected void shut() throws IOException {
        if (channel != null) {
            channel.close();
        }
        if (server != null) {
            server.close();
            selector.wakeup();
        }
    }
}
