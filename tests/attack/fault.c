/* Preloaded: the Nth call of a function on a file below a directory fails with an error, and so do those after it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, READ, WRITE, TRUNCATE, SYNC, RENAME, UNLINK, STAT, LIST, MAP, LOCK, MODE, MAKE, SPACE, KINDS };
#define FILES 4096
static char prefix[512];
static char is_watched[FILES];
static long counts[KINDS];
static int kind_armed = -1, error_armed;
static long first_armed, last_armed;

void fault_watch(const char *directory) { strncpy(prefix, directory, sizeof prefix - 1); }
void fault_arm(int kind, long first, long length, int error) {
  memset(counts, 0, sizeof counts);
  kind_armed = kind; first_armed = first; last_armed = first + length; error_armed = error;
}
__attribute__((constructor)) static void from_environment(void) {  /* FAULT="kind first length error" */
  const char *where = getenv("FAULT_BELOW"), *how = getenv("FAULT");
  int kind, error; long first, length;
  if (where) fault_watch(where);
  if (where && how && sscanf(how, "%d %ld %ld %d", &kind, &first, &length, &error) == 4) fault_arm(kind, first, length, error);
}
long fault_count(int kind) { return counts[kind]; }

static int below(const char *path) { return prefix[0] && path && !strncmp(path, prefix, strlen(prefix)); }
static int known(int fd) { return fd >= 0 && fd < FILES && is_watched[fd]; }
static int fails(int kind) {
  long at = __atomic_fetch_add(&counts[kind], 1, __ATOMIC_SEQ_CST);
  if (kind != kind_armed || at < first_armed || at >= last_armed) return 0;
  errno = error_armed;
  return 1;
}
static void note(int fd, int watched) { if (fd >= 0 && fd < FILES) is_watched[fd] = (char)watched; }

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)
#define OPENAT(name) \
  int name(int at, const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    REAL(int, #name, int, const char *, int, ...); \
    int watched = path[0] == '/' ? below(path) : known(at); \
    if (watched && fails(OPEN)) return -1; \
    int fd = real(at, path, flags, mode); note(fd, watched); return fd; }
#define OPEN_(name) \
  int name(const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    REAL(int, #name, const char *, int, ...); \
    int watched = below(path); \
    if (watched && fails(OPEN)) return -1; \
    int fd = real(path, flags, mode); note(fd, watched); return fd; }
OPENAT(openat) OPENAT(openat64) OPEN_(open) OPEN_(open64)

int close(int fd) { REAL(int, "close", int); note(fd, 0); return real(fd); }

#define ON_FILE(kind, type, failure, name, parameters, arguments) \
  type name parameters { static type (*real) parameters; if (!real) real = (type (*) parameters)dlsym(RTLD_NEXT, #name); \
    if (known(fd) && fails(kind)) return failure; return real arguments; }
ON_FILE(READ, ssize_t, -1, read, (int fd, void *to, size_t size), (fd, to, size))
ON_FILE(READ, ssize_t, -1, pread, (int fd, void *to, size_t size, off_t at), (fd, to, size, at))
ON_FILE(READ, ssize_t, -1, pread64, (int fd, void *to, size_t size, off64_t at), (fd, to, size, at))
ON_FILE(WRITE, ssize_t, -1, write, (int fd, const void *from, size_t size), (fd, from, size))
ON_FILE(WRITE, ssize_t, -1, pwrite, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at))
ON_FILE(WRITE, ssize_t, -1, pwrite64, (int fd, const void *from, size_t size, off64_t at), (fd, from, size, at))
ON_FILE(WRITE, ssize_t, -1, writev, (int fd, const struct iovec *all, int count), (fd, all, count))
ON_FILE(WRITE, ssize_t, -1, pwritev, (int fd, const struct iovec *all, int count, off_t at), (fd, all, count, at))
ON_FILE(WRITE, ssize_t, -1, pwritev64, (int fd, const struct iovec *all, int count, off64_t at), (fd, all, count, at))
ON_FILE(WRITE, ssize_t, -1, pwritev2, (int fd, const struct iovec *all, int count, off_t at, int flags), (fd, all, count, at, flags))
ON_FILE(WRITE, ssize_t, -1, pwritev64v2, (int fd, const struct iovec *all, int count, off64_t at, int flags), (fd, all, count, at, flags))
ON_FILE(TRUNCATE, int, -1, ftruncate, (int fd, off_t size), (fd, size))
ON_FILE(TRUNCATE, int, -1, ftruncate64, (int fd, off64_t size), (fd, size))
ON_FILE(SYNC, int, -1, fsync, (int fd), (fd))
ON_FILE(SYNC, int, -1, fdatasync, (int fd), (fd))
ON_FILE(STAT, int, -1, fstat, (int fd, struct stat *to), (fd, to))
ON_FILE(STAT, int, -1, fstat64, (int fd, struct stat64 *to), (fd, to))
ON_FILE(LOCK, int, -1, flock, (int fd, int how), (fd, how))
ON_FILE(MODE, int, -1, fchmod, (int fd, mode_t mode), (fd, mode))
ON_FILE(SPACE, int, -1, fstatvfs64, (int fd, struct statvfs64 *to), (fd, to))

#define ON_PATH(kind, type, failure, name, parameters, arguments) \
  type name parameters { static type (*real) parameters; if (!real) real = (type (*) parameters)dlsym(RTLD_NEXT, #name); \
    if (below(path) && fails(kind)) return failure; return real arguments; }
ON_PATH(STAT, int, -1, stat, (const char *path, struct stat *to), (path, to))
ON_PATH(STAT, int, -1, stat64, (const char *path, struct stat64 *to), (path, to))
ON_PATH(STAT, int, -1, lstat, (const char *path, struct stat *to), (path, to))
ON_PATH(STAT, int, -1, lstat64, (const char *path, struct stat64 *to), (path, to))
ON_PATH(STAT, int, -1, access, (const char *path, int how), (path, how))
ON_PATH(RENAME, int, -1, rename, (const char *path, const char *to), (path, to))
ON_PATH(RENAME, int, -1, link, (const char *path, const char *to), (path, to))
ON_PATH(UNLINK, int, -1, unlink, (const char *path), (path))
ON_PATH(UNLINK, int, -1, rmdir, (const char *path), (path))
ON_PATH(LIST, DIR *, NULL, opendir, (const char *path), (path))
ON_PATH(MODE, int, -1, chmod, (const char *path, mode_t mode), (path, mode))
ON_PATH(MAKE, int, -1, mkdir, (const char *path, mode_t mode), (path, mode))
ON_PATH(SPACE, int, -1, statvfs, (const char *path, struct statvfs *to), (path, to))
ON_PATH(SPACE, int, -1, statvfs64, (const char *path, struct statvfs64 *to), (path, to))

#define FROM_DIRECTORY(kind, name, parameters, arguments) \
  int name parameters { static int (*real) parameters; if (!real) real = (int (*) parameters)dlsym(RTLD_NEXT, #name); \
    if ((path[0] == '/' ? below(path) : known(at)) && fails(kind)) return -1; return real arguments; }
FROM_DIRECTORY(STAT, fstatat, (int at, const char *path, struct stat *to, int flags), (at, path, to, flags))
FROM_DIRECTORY(STAT, fstatat64, (int at, const char *path, struct stat64 *to, int flags), (at, path, to, flags))
FROM_DIRECTORY(UNLINK, unlinkat, (int at, const char *path, int flags), (at, path, flags))
FROM_DIRECTORY(RENAME, renameat, (int at, const char *path, int into, const char *to), (at, path, into, to))
FROM_DIRECTORY(MAKE, mkdirat, (int at, const char *path, mode_t mode), (at, path, mode))

#define MAP_(name, offset) \
  void *name(void *where, size_t size, int rights, int flags, int fd, offset at) { \
    REAL(void *, #name, void *, size_t, int, int, int, offset); \
    if (known(fd) && fails(MAP)) return MAP_FAILED; \
    return real(where, size, rights, flags, fd, at); }
MAP_(mmap, off_t) MAP_(mmap64, off64_t)
