#define _GNU_SOURCE
// Prints how connect() ends when a signal arrives, its time is over, or it is called again.
//   interrupted SILENT ECHO
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void handle(int signal) { (void)signal; }

static struct sockaddr_in at(const char *host, int port)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
    inet_pton(AF_INET, host, &to.sin_addr);
    return to;
}

static int try(int s, struct sockaddr_in to)
{
    return connect(s, (void *)&to, sizeof to) ? errno : 0;
}

static const char *name(int error)
{
    return error ? strerrorname_np(error) : "0";
}

static void alarmed(const char *host, int flags, const char *title)
{
    struct sigaction action = { .sa_handler = handle, .sa_flags = flags };
    sigaction(SIGALRM, &action, NULL);
    int ends[2];
    if (pipe(ends))
        return;
    pid_t child = fork();
    if (child == 0) {
        struct itimerval soon = { .it_value = { .tv_usec = 300000 } };
        setitimer(ITIMER_REAL, &soon, NULL);
        int error = try(socket(AF_INET, SOCK_STREAM, 0), at(host, 7000));
        dprintf(ends[1], "%s", name(error));
        _exit(0);
    }
    struct pollfd ended = { .fd = ends[0], .events = POLLIN };
    char text[64] = "waits on";
    if (poll(&ended, 1, 3000) == 1) {
        ssize_t length = read(ends[0], text, sizeof text - 1);
        text[length > 0 ? length : 0] = 0;
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    printf("%s: %s\n", title, text);
}

static void *shut(void *socket)
{
    usleep(300000);
    shutdown(*(int *)socket, SHUT_RDWR);
    return NULL;
}

// Another thread ends the connection.
static int shut_meanwhile(const char *host)
{
    int s = socket(AF_INET, SOCK_STREAM, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, shut, &s);
    int error = try(s, at(host, 7000));
    pthread_join(thread, NULL);
    return error;
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    const char *silent = arguments[1], *echo = arguments[2];
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarmed(silent, 0, "handled without SA_RESTART");
    alarmed(silent, SA_RESTART, "handled with SA_RESTART");
    int s = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval limit = { .tv_usec = 200000 };
    setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    printf("SO_SNDTIMEO: %s\n", name(try(s, at(silent, 7000))));
    fcntl(s, F_SETFL, O_NONBLOCK);
    printf("again without blocking: %s\n", name(try(s, at(silent, 7000))));
    printf("shut by another thread: %s\n", name(shut_meanwhile(silent)));
    s = socket(AF_INET, SOCK_STREAM, 0);
    printf("refused: %s\n", name(try(s, at(echo, 7001))));
    int n = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int first = try(n, at(echo, 7001));
    struct pollfd ready = { .fd = n, .events = POLLOUT };
    poll(&ready, 1, 3000);
    printf("refused without blocking: %s %s\n", name(first), name(try(n, at(echo, 7001))));
    printf("after refused: %s\n", name(try(s, at(echo, 7000))));
    printf("connected: %s\n", name(try(s, at(echo, 7000))));
    struct sockaddr none = { .sa_family = AF_UNSPEC };
    connect(s, &none, sizeof none);
    printf("disconnected and connected: %s\n", name(try(s, at(echo, 7000))));
    return 0;
}
