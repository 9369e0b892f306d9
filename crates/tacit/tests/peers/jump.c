/* Adds seconds to the clocks of a program: LD_PRELOAD=./jump.so JUMP=FILE PROGRAM
 *
 * The first eight bytes of the file are the seconds to add to the wall clock. The next eight bytes are
 * those to add to the clock that also runs while the machine is suspended. Both may change at any time.
 * Other clocks remain as they are.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static int (*original)(clockid_t, struct timespec *);
static volatile int64_t *seconds;

__attribute__((constructor)) static void begin(void) {
    original = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("JUMP");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = file < 0 ? MAP_FAILED : mmap(NULL, 16, PROT_READ, MAP_SHARED, file, 0);
    if (map != MAP_FAILED)
        seconds = map;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = original(clock, time);
    if (result == 0 && seconds && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time->tv_sec += seconds[0];
    if (result == 0 && seconds && clock == CLOCK_BOOTTIME)
        time->tv_sec += seconds[1];
    return result;
}
