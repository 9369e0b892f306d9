import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Arrays;
import java.util.Base64;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLServerSocket;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;

/**
 * A TLS peer of the tests: Java's SSLSocket. Its arguments and what it says are those of peer.go.
 */
public final class Peer {
    private static final BufferedReader INPUT =
            new BufferedReader(new InputStreamReader(System.in));

    public static void main(String[] arguments) throws Exception {
        for (String argument : Arrays.asList(arguments).subList(1, arguments.length)) {
            if (arguments[0].equals("client")) {
                client(argument.split(","));
            } else {
                server(argument);
            }
        }
        while (INPUT.readLine() != null) {
            continue;
        }
        System.exit(0);
    }

    private static SSLContext context(String identity) throws Exception {
        Certificate[] chain = certificates(identity + ".pem");
        String pem = Files.readString(Path.of(identity + ".key"));
        byte[] der = Base64.getMimeDecoder().decode(pem.replaceAll("-----.*-----", ""));
        KeyStore keys = KeyStore.getInstance("PKCS12");
        keys.load(null, null);
        keys.setKeyEntry(identity, KeyFactory.getInstance("EC")
                .generatePrivate(new PKCS8EncodedKeySpec(der)), new char[0], chain);
        KeyManagerFactory identities = KeyManagerFactory.getInstance("PKIX");
        identities.init(keys, new char[0]);

        KeyStore authority = KeyStore.getInstance("PKCS12");
        authority.load(null, null);
        authority.setCertificateEntry("ca", certificates("ca.pem")[0]);
        TrustManagerFactory trust = TrustManagerFactory.getInstance("PKIX");
        trust.init(authority);

        SSLContext context = SSLContext.getInstance("TLS");
        context.init(identities.getKeyManagers(), trust.getTrustManagers(), null);
        return context;
    }

    private static Certificate[] certificates(String file) throws Exception {
        try (InputStream pem = Files.newInputStream(Path.of(file))) {
            return CertificateFactory.getInstance("X.509").generateCertificates(pem)
                    .toArray(new Certificate[0]);
        }
    }

    private static void client(String[] part) throws Exception {
        int bytes = Integer.parseInt(part[2]);
        try (SSLSocket stream = (SSLSocket) context("alice").getSocketFactory()
                .createSocket("localhost", Integer.parseInt(part[0]))) {
            SSLParameters parameters = stream.getSSLParameters();
            parameters.setProtocols(new String[] {"TLSv" + part[1]});
            parameters.setEndpointIdentificationAlgorithm("HTTPS");
            stream.setSSLParameters(parameters);
            stream.startHandshake();
            swap(stream, bytes);
            System.out.println("open");
            INPUT.readLine();
            swap(stream, 1);
            stream.shutdownOutput();
            String rest = new String(stream.getInputStream().readAllBytes());
            System.out.println("done " + rest);
        }
    }

    private static void swap(SSLSocket stream, int bytes) throws IOException {
        byte[] sent = new byte[bytes];
        for (int i = 0; i < bytes; i++) {
            sent[i] = (byte) (i ^ i >> 8 ^ i >> 16);
        }
        start(() -> stream.getOutputStream().write(sent));
        byte[] got = stream.getInputStream().readNBytes(bytes);
        int wrong = Arrays.mismatch(got, sent);
        if (wrong != -1) {
            throw new IOException("byte " + wrong + " is missing or wrong");
        }
    }

    private static void server(String version) throws Exception {
        SSLServerSocket listener = (SSLServerSocket) context("localhost").getServerSocketFactory()
                .createServerSocket(0, 50, InetAddress.getLoopbackAddress());
        listener.setEnabledProtocols(new String[] {"TLSv" + version});
        listener.setNeedClientAuth(true);
        System.out.println("port " + listener.getLocalPort());
        start(() -> {
            while (true) {
                Socket stream = listener.accept();
                start(() -> serve(stream));
            }
        });
    }

    private static void serve(Socket stream) throws IOException {
        stream.getInputStream().transferTo(stream.getOutputStream());
        // In TLS 1.2 this library ends its own direction as soon as the client has.
        if (!stream.isOutputShutdown()) {
            stream.getOutputStream().write("bye".getBytes());
        }
        stream.close();
        System.out.println("served");
    }

    private interface Work {
        void run() throws Exception;
    }

    private static void start(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception error) {
                System.out.println("failed: " + error);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }
}
