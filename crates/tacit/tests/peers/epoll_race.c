// Connects sockets while another thread adds them to an epoll instance, and counts the sockets whose
// events do not arrive.
// Ends after ROUNDS, or after 20 seconds and MIN_ROUNDS: on a busy machine, both threads wait for a
// CPU.
//   epoll_race HOST PORT ROUNDS
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MIN_ROUNDS = 50 };

static atomic_int current = -1, added, delay;
static int instance;

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void *add(void *unused)
{
    (void)unused;
    for (;;) {
        int s;
        while ((s = atomic_load(&current)) < 0)
            ;
        double start = now_us();
        while (now_us() - start < atomic_load(&delay))
            ;
        struct epoll_event event = { EPOLLOUT | EPOLLIN | EPOLLET, { .u64 = 77 } };
        int result = epoll_ctl(instance, EPOLL_CTL_ADD, s, &event);
        atomic_store(&current, -1);
        atomic_store(&added, result ? -errno : 1);
    }
}

int main(int count, char **arguments)
{
    if (count < 4)
        return 2;
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(arguments[2])) };
    inet_pton(AF_INET, arguments[1], &to.sin_addr);
    instance = epoll_create1(0);
    pthread_t thread;
    pthread_create(&thread, NULL, add, NULL);
    int rounds = atoi(arguments[3]), round, lost = 0, add_errors = 0, mod_errors = 0;
    double end = now_us() + 20e6;
    for (round = 0; round < rounds && (round < MIN_ROUNDS || now_us() < end); round++) {
        int s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        atomic_store(&delay, rand() % 600);
        atomic_store(&added, 0);
        atomic_store(&current, s);
        if (connect(s, (void *)&to, sizeof to) && errno != EINPROGRESS)
            return perror("connect"), 1;
        while (!atomic_load(&added))
            ;
        add_errors += atomic_load(&added) != 1;
        int found = 0;
        double start = now_us();
        while (!found && now_us() - start < 5e6) {
            struct epoll_event event;
            found = epoll_wait(instance, &event, 1, 500) == 1 && !(event.events & EPOLLHUP);
        }
        lost += !found;
        struct epoll_event event = { EPOLLIN, { .u64 = 77 } };
        mod_errors += epoll_ctl(instance, EPOLL_CTL_MOD, s, &event) != 0;
        close(s);
    }
    printf("%d rounds, lost %d, add errors %d, mod errors %d\n", round, lost, add_errors,
           mod_errors);
    return 0;
}
