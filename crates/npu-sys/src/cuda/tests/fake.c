// A stand-in for libcuda.so.1: one device of host memory, on which all work is done at once.
// It knows what it gave out, and refuses calls that are made outside of its context.

#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long device_address;

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_CONTEXT = 201, BAD_HANDLE = 400, NOT_READY = 600,
       UNSUPPORTED = 801, CAPTURED = 900 };
enum { UNIT = 2 << 20, PAGE = 4096 };

// What the tests set and read.
int fake_init_code = OK, fake_has_virtual_memory = 1, fake_is_busy = 0, fake_call_code = OK;
int fake_is_capturing = 0, fake_copies_until_failure = -1;
long fake_held = 0, fake_retained = 0, fake_waited_for = 0;
// Copies to the host, those of them that another stream made than the one before, and those that
// were not ordered behind all before.
long fake_copies_out = 0, fake_turns = 0, fake_unordered = 0;

static char primary;
static __thread void *current;
static __thread int capture_mode;

// While a graph is captured, calls are refused to a thread that has not said that they are apart.
#define INSIDE do { if (current != &primary || !fake_retained) return NO_CONTEXT; \
                    if (fake_is_capturing && capture_mode != 2) return CAPTURED; \
                    if (fake_call_code) return fake_call_code; } while (0)
#define HELD(n) __atomic_add_fetch(&fake_held, (n), __ATOMIC_SEQ_CST)

int cuInit(unsigned flags) { return flags ? INVALID : fake_init_code; }
int cuDriverGetVersion(int *version) { *version = 12080; return OK; }
int cuGetErrorName(int code, const char **text) {
    switch (code) {
    case NO_MEMORY: *text = "CUDA_ERROR_OUT_OF_MEMORY"; return OK;
    case 803: *text = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"; return OK;
    default: *text = NULL; return INVALID;
    }
}
int cuGetErrorString(int code, const char **text) {
    *text = code == NO_MEMORY ? "out of memory" : NULL;
    return *text ? OK : INVALID;
}
int cuDeviceGetCount(int *count) { *count = 1; return OK; }
int cuDeviceGet(int *device, int index) { *device = 40 + index; return index ? 101 : OK; }
int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, "Fake", length);
    return device == 40 ? OK : 101;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 16 ? 2 : attribute == 102 ? fake_has_virtual_memory : 1;
    return device == 40 ? OK : 101;
}
int cuDeviceTotalMem_v2(size_t *total, int device) {
    *total = 64ull * UNIT;
    return device == 40 ? OK : 101;
}
int cuDeviceGetPCIBusId(char *id, int length, int device) {
    strncpy(id, "FFFF:FF:1F.0", length);
    return device == 40 ? OK : 101;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    fake_retained++;
    *context = &primary;
    return device == 40 ? OK : 101;
}
int cuDevicePrimaryCtxRelease_v2(int device) { fake_retained--; return device == 40 ? OK : 101; }
int cuCtxGetCurrent(void **context) { *context = current; return OK; }
int cuCtxSetCurrent(void *context) { current = context; return OK; }
int cuCtxSynchronize(void) { INSIDE; return OK; }

int cuMemGetInfo_v2(size_t *free_, size_t *total) {
    INSIDE;
    *free_ = 32ull * UNIT;
    *total = 64ull * UNIT;
    return OK;
}
int cuMemAlloc_v2(device_address *start, size_t size) {
    INSIDE;
    *start = (device_address)(uintptr_t)aligned_alloc(UNIT, size);
    HELD(1);
    return OK;
}
int cuMemFree_v2(device_address start) { INSIDE; free((void *)start); HELD(-1); return OK; }

int cuMemGetAllocationGranularity(size_t *unit, const int *prop, unsigned option) {
    *unit = UNIT;
    return option || prop[0] != 1 || prop[2] != 1 || prop[3] != 40 ? INVALID : OK;
}
int cuMemAddressReserve(device_address *start, size_t size, size_t alignment,
                        device_address wish, unsigned long long flags) {
    INSIDE;
    if (alignment || wish || flags) return INVALID;
    char *all = mmap(NULL, size + UNIT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return NO_MEMORY;
    *start = ((device_address)(uintptr_t)all + UNIT - 1) / UNIT * UNIT;
    HELD(1);
    return OK;
}
int cuMemAddressFree(device_address start, size_t size) {
    INSIDE;
    HELD(-1);
    return munmap((void *)start, size) ? INVALID : OK;
}
int cuMemCreate(unsigned long long *handle, size_t size, const int *prop, unsigned long long flags) {
    INSIDE;
    if (flags || prop[0] != 1 || prop[2] != 1 || prop[3] != 40) return INVALID;
    int file = memfd_create("fake", 0);
    if (file < 0 || ftruncate(file, size)) return NO_MEMORY;
    *handle = 1000 + file;
    HELD(1);
    return OK;
}
int cuMemRelease(unsigned long long handle) {
    INSIDE;
    HELD(-1);
    return close(handle - 1000) ? INVALID : OK;
}
int cuMemMap(device_address start, size_t size, size_t offset, unsigned long long handle,
             unsigned long long flags) {
    INSIDE;
    if (offset || flags) return INVALID;
    int how = MAP_SHARED | MAP_FIXED;
    if (mmap((void *)start, size, PROT_NONE, how, handle - 1000, 0) == MAP_FAILED) return INVALID;
    HELD(1);
    return OK;
}
int cuMemSetAccess(device_address start, size_t size, const int *access, size_t count) {
    INSIDE;
    if (count != 1 || access[0] != 1 || access[1] != 40 || access[2] != 3) return INVALID;
    return mprotect((void *)start, size, PROT_READ | PROT_WRITE) ? INVALID : OK;
}
int cuMemUnmap(device_address start, size_t size) {
    INSIDE;
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap((void *)start, size, PROT_NONE, how, -1, 0) == MAP_FAILED) return INVALID;
    HELD(-1);
    return OK;
}

// Pieces are aligned to less than a page, as the real library's may be.
int cuMemHostAlloc(void **start, size_t size, unsigned flags) {
    INSIDE;
    if (flags != 3) return INVALID;
    size_t shift = size < UNIT ? 512 : 0;
    char *all = aligned_alloc(PAGE, (size + shift + PAGE - 1) / PAGE * PAGE);
    *start = all + shift;
    HELD(1);
    return OK;
}
int cuMemFreeHost(void *start) {
    INSIDE;
    free((void *)((uintptr_t)start / PAGE * PAGE));
    HELD(-1);
    return OK;
}
int cuMemHostRegister_v2(void *start, size_t size, unsigned flags) {
    INSIDE;
    HELD(1);
    return start && size && flags == 3 ? OK : INVALID;
}
int cuMemHostUnregister(void *start) { INSIDE; HELD(-1); return start ? OK : INVALID; }
int cuMemHostGetDevicePointer_v2(device_address *device, void *host, unsigned flags) {
    INSIDE;
    *device = (device_address)(uintptr_t)host;
    return flags ? INVALID : OK;
}

// A stream or an event, and how many copies to the host it comes after.
struct object { int flags; long comes_after; };

int cuMemcpyHtoDAsync_v2(device_address target, const void *source, size_t size, void *stream) {
    INSIDE;
    memcpy((void *)target, source, size);
    return OK;
}
int cuMemcpyDtoHAsync_v2(void *target, device_address source, size_t size, void *stream) {
    static void *last;
    struct object *it = stream;
    INSIDE;
    if (!fake_copies_until_failure) return NO_MEMORY;
    fake_copies_until_failure--;
    if (it) {
        fake_unordered += it->comes_after != fake_copies_out;
        fake_turns += last && last != stream;
        it->comes_after = fake_copies_out + 1;
        last = stream;
    }
    fake_copies_out++;
    memcpy(target, (void *)source, size);
    return OK;
}
int cuMemcpyDtoDAsync_v2(device_address target, device_address source, size_t size, void *stream) {
    INSIDE;
    memcpy((void *)target, (void *)source, size);
    return OK;
}
int cuMemsetD8Async(device_address target, unsigned char value, size_t count, void *stream) {
    INSIDE;
    memset((void *)target, value, count);
    return OK;
}

static int make(struct object **object, int flags) {
    *object = malloc(sizeof(struct object));
    **object = (struct object){ flags, 0 };
    HELD(1);
    return OK;
}
int cuStreamCreate(struct object **stream, unsigned flags) {
    INSIDE;
    return flags == 1 ? make(stream, 1) : INVALID;
}
int cuStreamDestroy_v2(int *stream) { INSIDE; free(stream); HELD(-1); return OK; }
int cuStreamIsCapturing(int *stream, int *status) {
    INSIDE;
    *status = fake_is_capturing;
    return OK;
}
int cuThreadExchangeStreamCaptureMode(int *mode) {
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return OK;
}
int cuStreamSynchronize(struct object *stream) {
    INSIDE;
    if (stream && stream->comes_after > fake_waited_for) fake_waited_for = stream->comes_after;
    return OK;
}
int cuStreamWaitEvent(struct object *stream, struct object *event, unsigned flags) {
    INSIDE;
    if (stream && stream->comes_after < event->comes_after)
        stream->comes_after = event->comes_after;
    return flags;
}
int cuEventCreate(struct object **event, unsigned flags) { INSIDE; return make(event, flags); }
int cuEventDestroy_v2(int *event) { INSIDE; free(event); HELD(-1); return OK; }
int cuEventRecord(struct object *event, struct object *stream) {
    INSIDE;
    event->comes_after = stream ? stream->comes_after : fake_copies_out;
    return OK;
}
int cuEventQuery(int *event) { INSIDE; return fake_is_busy ? NOT_READY : OK; }
int cuEventSynchronize(int *event) { INSIDE; return OK; }
int cuEventElapsedTime(float *ms, struct object *start, struct object *end) {
    INSIDE;
    if (start->flags || end->flags) return BAD_HANDLE;
    if (fake_is_busy) return NOT_READY;
    *ms = 1.5f;
    return OK;
}

struct call { void (*function)(void *); void *argument; };
static void *call(void *argument) {
    struct call *it = argument;
    it->function(it->argument);
    return NULL;
}
int cuLaunchHostFunc(int *stream, void (*function)(void *), void *argument) {
    INSIDE;
    struct call it = { function, argument };
    pthread_t thread;
    if (pthread_create(&thread, NULL, call, &it)) return NO_MEMORY;
    return pthread_join(thread, NULL);
}
int cuModuleLoadData(struct object **module, const char *image) {
    INSIDE;
    return strstr(image, ".entry") ? make(module, 0) : 218;
}
int cuModuleUnload(int *module) { INSIDE; free(module); HELD(-1); return OK; }
int cuModuleGetFunction(void **function, int *module, const char *name) {
    INSIDE;
    *function = module;
    return strcmp(name, "write_pattern") && strcmp(name, "check_pattern") ? 500 : OK;
}
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                   void *stream, void **parameters, void **extra) {
    INSIDE;
    return UNSUPPORTED;
}
