// Counts the bytes that memcpy and memmove copy in long pieces, and allocations, in the file that TAKO_COUNTS names.
// Preloaded into a process by the test beside it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { LONG = 1024 };

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);

static uint64_t nowhere[2], *counts = nowhere;
static void *(*plain)(void *, const void *, size_t);

__attribute__((constructor)) static void start(void) {
    plain = dlsym(RTLD_NEXT, "memmove");
    void *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, open(getenv("TAKO_COUNTS"), O_RDWR), 0);
    if (shared == MAP_FAILED)
        abort();
    counts = shared;
}

static void *copy(void *to, const void *from, size_t length) {
    if (length >= LONG)
        __atomic_fetch_add(&counts[0], length, __ATOMIC_RELAXED);
    if (plain)
        return plain(to, from, length);
    volatile char *bytes = to;
    for (size_t i = 0; i < length; i++)
        bytes[i] = ((const char *)from)[i];
    return to;
}

static void *allocated(void *memory) {
    __atomic_fetch_add(&counts[1], 1, __ATOMIC_RELAXED);
    return memory;
}

void *memcpy(void *to, const void *from, size_t length) { return copy(to, from, length); }
void *memmove(void *to, const void *from, size_t length) { return copy(to, from, length); }
void *malloc(size_t length) { return allocated(__libc_malloc(length)); }
void *calloc(size_t count, size_t length) { return allocated(__libc_calloc(count, length)); }
void *realloc(void *old, size_t length) { return allocated(__libc_realloc(old, length)); }
void *aligned_alloc(size_t alignment, size_t length) { return allocated(__libc_memalign(alignment, length)); }

int posix_memalign(void **memory, size_t alignment, size_t length) {
    *memory = allocated(__libc_memalign(alignment, length));
    return *memory ? 0 : 12;
}
