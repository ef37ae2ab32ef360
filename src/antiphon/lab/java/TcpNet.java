import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;

/**
 * TCP with blocking sockets of {@code java.net}: a length of four bytes, then the message. The
 * reader has a thread per connection and makes a new array for every message, as a caller would get it.
 */
final class TcpNet extends Role {
    private static final int BUFFER = 64 * 1024;
    private static final int PATIENCE = 10_000;

    private ServerSocket server;
    private Socket socket;
    private DataOutputStream out;

    private TcpNet(String role) {
        super(role);
    }

    public static void main(String[] arguments) throws IOException {
        new TcpNet(arguments[0]).obey();
    }

    @Override
    protected String open(Facts order) throws IOException {
        if (writer && !member) {
            return "";
        }
        server = new ServerSocket();
        if (buffer > 0) {
            server.setReceiveBufferSize(buffer);
        }
        server.bind(new InetSocketAddress(host, (int) order.whole("port", 0)));
        thread("accept", () -> {
            while (!closing) {
                Socket accepted = server.accept();
                thread("receive", () -> receive(accepted));
            }
        });
        return host + ":" + server.getLocalPort();
    }

    private void receive(Socket accepted) throws IOException {
        Sink sink = sink();
        try (accepted;
                DataInputStream in = new DataInputStream(
                        new BufferedInputStream(accepted.getInputStream(), BUFFER))) {
            while (true) {
                int length;
                try {
                    length = in.readInt();
                } catch (EOFException end) {
                    return;
                }
                if (length < 0 || length > payload.largest()) {
                    throw new IOException("a frame of " + length + " bytes");
                }
                byte[] message = new byte[length];
                in.readFully(message);
                sink.take(message, 0, length);
            }
        }
    }

    @Override
    protected void connect(Facts order, Facts answer) throws IOException {
        if (!writer) {
            return;
        }
        String address = order.text("address", "");
        socket = new Socket();
        if (buffer > 0) {
            socket.setSendBufferSize(buffer);
        }
        socket.setTcpNoDelay(true);
        socket.connect(new InetSocketAddress(host(address), port(address)), PATIENCE);
        out = new DataOutputStream(new BufferedOutputStream(socket.getOutputStream(), BUFFER));
    }

    @Override
    public void send(byte[] data) throws IOException {
        out.writeInt(data.length);
        out.write(data);
    }

    @Override
    public void flush() throws IOException {
        out.flush();
    }

    @Override
    protected void shut() throws IOException {
        if (socket != null) {
            socket.close();
        }
        if (server != null) {
            server.close();
        }
    }
}
