import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;

/**
 * Java's channels, each registered before it connects: Channels HOST PORT.
 *
 * They send bytes, end, and read them back from an echo server.
 */
public final class Channels {
    private static final int CHANNELS = 20;
    private static final int BYTES = 300_000;

    private static int done;

    private static final class Talk {
        private final ByteBuffer sent = ByteBuffer.allocate(BYTES);
        private final ByteBuffer got = ByteBuffer.allocate(BYTES + 1);
    }

    public static void main(String[] arguments) throws Exception {
        InetSocketAddress to =
                new InetSocketAddress(arguments[0], Integer.parseInt(arguments[1]));
        try (Selector selector = Selector.open()) {
            for (int i = 0; i < CHANNELS; i++) {
                Talk talk = new Talk();
                while (talk.sent.hasRemaining()) {
                    talk.sent.put((byte) (talk.sent.position() * 31 + i));
                }
                talk.sent.flip();
                SocketChannel channel = SocketChannel.open();
                channel.configureBlocking(false);
                channel.register(selector, SelectionKey.OP_CONNECT, talk);
                channel.connect(to);
            }
            while (done < CHANNELS) {
                if (selector.select(20_000) == 0) {
                    throw new Exception("nothing happens any more");
                }
                for (SelectionKey key : selector.selectedKeys()) {
                    step(key, (SocketChannel) key.channel(), (Talk) key.attachment());
                }
                selector.selectedKeys().clear();
            }
        }
    }

    private static void step(SelectionKey key, SocketChannel channel, Talk talk)
            throws Exception {
        if (key.isConnectable() && channel.finishConnect()) {
            System.out.println("open " + channel.getRemoteAddress());
            key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
            return;
        }
        if (key.isWritable()) {
            channel.write(talk.sent);
            if (!talk.sent.hasRemaining()) {
                channel.shutdownOutput();
                key.interestOps(SelectionKey.OP_READ);
            }
        }
        if (key.isReadable() && channel.read(talk.got) == -1) {
            boolean right = talk.sent.flip().equals(talk.got.flip());
            System.out.println("done " + talk.got.limit() + " " + right);
            channel.close();
            done++;
        }
    }
}
