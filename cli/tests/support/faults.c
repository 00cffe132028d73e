/* Faults of one process, for tests: a slow disk and a clock that is off. A library for LD_PRELOAD, so the program itself contains none.
 *
 * A fault exists while a file with its name is in the folder that the variable FAULTS_FOLDER names:
 *
 *   slow-disk   every sync, and every write that is a sync (O_DSYNC), takes 800 ms longer
 *   clock-off   the wall clock is 600 s behind
 *
 * The system is called without the C library's own functions: the library is used before these can be looked up. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const long DELAY_NANOS = 800 * 1000 * 1000;
static const time_t BEHIND_SECONDS = 600;

static int exists(const char *fault)
{
    char path[4096];
    const char *folder = getenv("FAULTS_FOLDER");
    if (folder == NULL)
        return 0;
    snprintf(path, sizeof path, "%s/%s", folder, fault);
    return syscall(SYS_faccessat, AT_FDCWD, path, F_OK) == 0;
}

static void delay(void)
{
    struct timespec left = {0, DELAY_NANOS};
    if (exists("slow-disk"))
        while (nanosleep(&left, &left) != 0) {
        }
}

int fsync(int file)
{
    delay();
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file)
{
    delay();
    return (int)syscall(SYS_fdatasync, file);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset)
{
    if (fcntl(file, F_GETFL) & O_DSYNC)
        delay();
    return syscall(SYS_pwrite64, file, bytes, count, offset);
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME && exists("clock-off"))
        time->tv_sec -= BEHIND_SECONDS;
    return result;
}
