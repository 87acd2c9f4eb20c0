/* Preloaded into a program: while the file $AWAY_FLAG exists, all that is done in the folder $AWAY_FOLDER fails with EIO,
   as on a network's file system whose server is gone; $CLOCK_SKEW seconds are added to the time of day,
   and taken from what is waited for until a time of day, which the kernel knows only as it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define OWN(type, name, ...) static type (*own)(__VA_ARGS__); if (!own) own = dlsym(RTLD_NEXT, #name)

static int away(const char *path) {
  const char *flag = getenv("AWAY_FLAG"), *folder = getenv("AWAY_FOLDER");
  if (!flag || !folder || !path || strncmp(path, folder, strlen(folder))) return 0;
  if (path[strlen(folder)] && path[strlen(folder)] != '/') return 0; /* another one, whose name begins alike */
  if (syscall(SYS_access, flag, F_OK)) return 0;
  errno = EIO;
  return 1;
}

static int away_file(int file) {
  char link[64], path[PATH_MAX];
  const char *flag = getenv("AWAY_FLAG");
  if (!flag || syscall(SYS_access, flag, F_OK)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return away(path);
}

#define OPEN(name)                                                        \
  int name(const char *path, int flags, ...) {                            \
    OWN(int, name, const char *, int, ...);                               \
    va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
    return away(path) ? -1 : own(path, flags, mode);                      \
  }
OPEN(open)
OPEN(open64)
#define OPENAT(name)                                                      \
  int name(int at, const char *path, int flags, ...) {                    \
    OWN(int, name, int, const char *, int, ...);                          \
    va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
    return away(path) ? -1 : own(at, path, flags, mode);                  \
  }
OPENAT(openat)
OPENAT(openat64)
int mkdir(const char *path, mode_t mode) { OWN(int, mkdir, const char *, mode_t); return away(path) ? -1 : own(path, mode); }
int rename(const char *from, const char *to) {
  OWN(int, rename, const char *, const char *);
  return away(from) || away(to) ? -1 : own(from, to);
}
int unlink(const char *path) { OWN(int, unlink, const char *); return away(path) ? -1 : own(path); }
int stat(const char *path, struct stat *found) { OWN(int, stat, const char *, struct stat *); return away(path) ? -1 : own(path, found); }
int stat64(const char *path, struct stat64 *found) { OWN(int, stat64, const char *, struct stat64 *); return away(path) ? -1 : own(path, found); }
void *opendir(const char *path) { OWN(void *, opendir, const char *); return away(path) ? NULL : own(path); }
ssize_t write(int file, const void *data, size_t size) {
  OWN(ssize_t, write, int, const void *, size_t);
  return away_file(file) ? -1 : own(file, data, size);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
  OWN(ssize_t, pwrite64, int, const void *, size_t, off64_t);
  return away_file(file) ? -1 : own(file, data, size, at);
}
ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
  OWN(ssize_t, pwrite, int, const void *, size_t, off_t);
  return away_file(file) ? -1 : own(file, data, size, at);
}
int fsync(int file) { OWN(int, fsync, int); return away_file(file) ? -1 : own(file); }

int clock_gettime(clockid_t clock, struct timespec *now) {
  OWN(int, clock_gettime, clockid_t, struct timespec *);
  int failed = own(clock, now);
  const char *skew = getenv("CLOCK_SKEW");
  if (!failed && skew && clock == CLOCK_REALTIME) now->tv_sec += atol(skew);
  return failed;
}

#define A_DATE 1000000000 /* seconds: no machine is up for so long, so that more is a time of day */
static struct timespec real(const struct timespec *until) {
  struct timespec found = *until;
  const char *skew = getenv("CLOCK_SKEW");
  if (skew && found.tv_sec > A_DATE) found.tv_sec -= atol(skew);
  return found;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
  static int (*own)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  if (!own) own = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"); /* not the older one of that name */
  if (!own) own = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  struct timespec when = real(until);
  return own(condition, mutex, &when);
}
int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until) {
  OWN(int, pthread_cond_clockwait, pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
  struct timespec when = real(until);
  return own(condition, mutex, clock, &when);
}
int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
  OWN(int, sem_timedwait, sem_t *, const struct timespec *);
  struct timespec when = real(until);
  return own(semaphore, &when);
}
long syscall(long number, ...) {
  OWN(long, syscall, long, ...);
  long a[6];
  va_list more; va_start(more, number); for (int i = 0; i < 6; i++) a[i] = va_arg(more, long); va_end(more);
  struct timespec when;
  if (number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && a[3]) {
    when = real((const struct timespec *)a[3]);
    a[3] = (long)&when;
  }
  return own(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
