/* Questions for names, as many as can be answered, and a resolver that is faster than they are.
 *
 *   dnsload serve PORT                            answers everything on 127.0.0.1 with 10.9.8.7
 *   dnsload ask SERVER THREADS WINDOW SECONDS     prints questions answered, lost, and seconds
 *
 * Each thread has one socket and WINDOW questions open, for 1,000 names below `example`. What is
 * not answered within a second counts as lost, and is asked again.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { BATCH = 64, BYTES = 512, NAMES = 1000 };

static const char *server;
static int window;
static double seconds;
static _Atomic unsigned long answered, lost;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void prepare(struct mmsghdr *m, struct iovec *v, char (*buf)[BYTES], int count) {
    memset(m, 0, sizeof *m * count);
    for (int i = 0; i < count; i++) {
        v[i] = (struct iovec){buf[i], BYTES};
        m[i].msg_hdr.msg_iov = &v[i];
        m[i].msg_hdr.msg_iovlen = 1;
    }
}

static int serve(int port) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_DGRAM, 0), size = 4 << 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    if (bind(fd, (struct sockaddr *)&own, sizeof own)) return perror("bind"), 1;
    static char buf[BATCH][BYTES];
    static struct sockaddr_in from[BATCH];
    struct mmsghdr m[BATCH];
    struct iovec v[BATCH];
    for (;;) {
        prepare(m, v, buf, BATCH);
        for (int i = 0; i < BATCH; i++) {
            m[i].msg_hdr.msg_name = &from[i];
            m[i].msg_hdr.msg_namelen = sizeof from[i];
        }
        int n = recvmmsg(fd, m, BATCH, MSG_WAITFORONE, NULL);
        for (int i = 0; i < n; i++) {
            unsigned char *q = (unsigned char *)buf[i];
            int at = 12;
            while (q[at]) at += 1 + q[at];
            at += 5;
            q[2] = 0x81, q[3] = 0x80, q[7] = 1, q[11] = 0;
            memcpy(q + at, "\xc0\x0c\0\1\0\1\0\0\1\x2c\0\4\x0a\x09\x08\x07", 16);
            v[i].iov_len = at + 16;
        }
        for (int sent = 0; sent < n;) {
            int more = sendmmsg(fd, m + sent, n - sent, 0);
            sent += more > 0 ? more : 1;
        }
    }
}

static void *ask(void *arg) {
    unsigned seed = (unsigned)(size_t)arg * 7919 + 1;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(53)};
    inet_pton(AF_INET, server, &to.sin_addr);
    int fd = socket(AF_INET, SOCK_DGRAM, 0), size = 4 << 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) return perror("connect"), NULL;
    char buf[BATCH][BYTES];
    struct mmsghdr m[BATCH];
    struct iovec v[BATCH];
    int open = 0;
    unsigned short id = 0;
    for (double end = now() + seconds; now() < end;) {
        while (open < window) {
            int n = window - open < BATCH ? window - open : BATCH;
            prepare(m, v, buf, n);
            for (int i = 0; i < n; i++) {
                char name[8];
                unsigned char *q = (unsigned char *)buf[i];
                id++;
                memcpy(q, (char[]){id >> 8, id, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, 12);
                int length = snprintf(name, sizeof name, "n%d", rand_r(&seed) % NAMES);
                q[12] = length;
                memcpy(q + 13, name, length);
                memcpy(q + 13 + length, "\7example\0\0\1\0\1", 13);
                v[i].iov_len = 13 + length + 13;
            }
            n = sendmmsg(fd, m, n, 0);
            if (n <= 0) break;
            open += n;
        }
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, 1000) == 0) {
            lost += open, open = 0;
            continue;
        }
        prepare(m, v, buf, BATCH);
        int n = recvmmsg(fd, m, BATCH, MSG_DONTWAIT, NULL);
        for (int i = 0; i < n; i++) answered += (buf[i][3] & 15) == 0 && buf[i][7] == 1;
        open -= n > 0 ? (n < open ? n : open) : 0;
    }
    return NULL;
}

int main(int count, char **word) {
    if (count == 3 && !strcmp(word[1], "serve")) return serve(atoi(word[2]));
    if (count != 6) return fprintf(stderr, "see the head of dnsload.c\n"), 64;
    server = word[2], window = atoi(word[4]), seconds = atof(word[5]);
    int threads = atoi(word[3]);
    pthread_t thread[threads];
    double begun = now();
    for (long i = 0; i < threads; i++) pthread_create(&thread[i], NULL, ask, (void *)i);
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    printf("%lu answered, %lu lost, %.2f s\n", answered, lost, now() - begun);
    return 0;
}
