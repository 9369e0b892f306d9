/** Resolves its argument. */
public class Resolve {
    public static void main(String[] arguments) throws Exception {
        System.out.println(java.net.InetAddress.getByName(arguments[0]).getHostAddress());
    }
}
