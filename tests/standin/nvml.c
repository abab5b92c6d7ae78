/* A stand-in for NVIDIA's management library: several GPUs that exist only in a shared file.
 *
 * Clocks, energy counters and call counts live in the file STANDIN_STATE names, mapped by every
 * process, so a clock set in one is seen in another. Energy integrates
 *     power = static + load * dynamic * (clock / top clock) ** exponent
 * over real time. Everything else is scripted by environment variables, read at every call:
 *
 *   STANDIN_STATE           file of the state; without it there is no driver
 *   STANDIN_GPUS            number of GPUs (2)
 *   STANDIN_NAME            their name (NVIDIA A100-SXM4-40GB); several separated by ';'
 *   STANDIN_CLOCKS          lowest:top:step in MHz (210:1410:15)
 *   STANDIN_POWER           static:dynamic:exponent in W (85:215:2.4)
 *   STANDIN_LOAD            0..1 (1)
 *   STANDIN_TICK_MS         period of the energy counter (20)
 *   STANDIN_SETTLE_MS       time until a new clock holds (10)
 *   STANDIN_TEMPERATURE     degrees Celsius (45)
 *   STANDIN_POWER_BIAS      power reading over true power (1)
 *   STANDIN_NO_PERMISSION   set and reset of clocks are refused
 *   STANDIN_NO_COUNTER      list of GPUs (0,1) or 'all' without an energy counter
 *   STANDIN_STUCK_COUNTER   ... whose counter does not move
 *   STANDIN_NO_POWER        ... without a power reading
 *   STANDIN_MIG             ... with MIG enabled
 *   STANDIN_DISOBEY         ... that accept a clock and do not keep it
 *   STANDIN_NO_PERSISTENCE  ... with persistence mode off
 *   STANDIN_BUSY            ... on which a process of somebody else computes
 *   STANDIN_THROTTLE        gpu:reason bits:MHz lost:sets; throttled until the clock was set more
 *                           than `sets` times
 */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MAX_GPUS = 16 };
enum {
    OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15
};

typedef struct {
    double energy_mj;      /* up to last_s */
    double last_s;         /* monotonic */
    double set_s;          /* when the clock was last set or reset */
    uint32_t locked_mhz;   /* 0: not locked */
    uint32_t before_mhz;   /* clock before the last change */
    uint32_t num_sets;
    uint32_t num_resets;
} Gpu;

static Gpu *gpus;
static int state_file = -1;
static char mapped[512];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double number(const char *name, double otherwise) {
    const char *text = getenv(name);
    return text && *text ? atof(text) : otherwise;
}

static int listed(const char *name, int gpu) {
    const char *text = getenv(name);
    if (!text || !*text) return 0;
    if (!strcmp(text, "all")) return 1;
    for (const char *at = text; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (atoi(at) == gpu) return 1;
    return 0;
}

static int count(void) {
    int n = (int)number("STANDIN_GPUS", 2);
    return n < MAX_GPUS ? n : MAX_GPUS;
}

static void clocks(int *low, int *top, int *step) {
    *low = 210, *top = 1410, *step = 15;
    const char *text = getenv("STANDIN_CLOCKS");
    if (text) sscanf(text, "%d:%d:%d", low, top, step);
}

static int attach(void) {
    const char *path = getenv("STANDIN_STATE");
    if (!path || !*path) return DRIVER_NOT_LOADED;
    if (gpus && !strcmp(path, mapped)) return OK;
    if (gpus) munmap(gpus, MAX_GPUS * sizeof(Gpu)), close(state_file), gpus = NULL;
    state_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (state_file < 0 || ftruncate(state_file, MAX_GPUS * sizeof(Gpu))) return DRIVER_NOT_LOADED;
    void *at = mmap(NULL, MAX_GPUS * sizeof(Gpu), PROT_READ | PROT_WRITE, MAP_SHARED, state_file, 0);
    if (at == MAP_FAILED) return DRIVER_NOT_LOADED;
    gpus = at;
    snprintf(mapped, sizeof mapped, "%s", path);
    return OK;
}

/* flock dies with its process, so a killed one leaves no lock behind. */
static int enter(void) {
    pthread_mutex_lock(&mutex);
    int error = attach();
    if (error) { pthread_mutex_unlock(&mutex); return error; }
    flock(state_file, LOCK_EX);
    return OK;
}

static void leave(void) {
    flock(state_file, LOCK_UN);
    pthread_mutex_unlock(&mutex);
}

static int index_of(void *handle) { return (int)(intptr_t)handle - 1; }

static int throttle(int gpu, int *bits, int *lost_mhz) {
    int which = -1, sets = 0;
    const char *text = getenv("STANDIN_THROTTLE");
    *bits = *lost_mhz = 0;
    if (!text || sscanf(text, "%d:%d:%d:%d", &which, bits, lost_mhz, &sets) < 3) return 0;
    if (which == gpu && gpus[gpu].num_sets <= (uint32_t)sets) return 1;
    *bits = *lost_mhz = 0;
    return 0;
}

static int target_mhz(int gpu) {
    int low, top, step, bits, lost;
    clocks(&low, &top, &step);
    int mhz = gpus[gpu].locked_mhz && !listed("STANDIN_DISOBEY", gpu) ? (int)gpus[gpu].locked_mhz : top;
    if (throttle(gpu, &bits, &lost)) mhz -= lost;
    return mhz < low ? low : mhz;
}

static int clock_mhz(int gpu) {
    double settled_s = gpus[gpu].set_s + number("STANDIN_SETTLE_MS", 10) / 1e3;
    return gpus[gpu].before_mhz && now_s() < settled_s ? (int)gpus[gpu].before_mhz : target_mhz(gpu);
}

static double power_w(int gpu) {
    double still = 85, dynamic = 215, exponent = 2.4;
    int low, top, step;
    const char *text = getenv("STANDIN_POWER");
    if (text) sscanf(text, "%lf:%lf:%lf", &still, &dynamic, &exponent);
    clocks(&low, &top, &step);
    return still + number("STANDIN_LOAD", 1) * dynamic * pow((double)clock_mhz(gpu) / top, exponent);
}

static void integrate(int gpu) {
    double now = now_s(), tick_s = number("STANDIN_TICK_MS", 20) / 1e3;
    Gpu *g = &gpus[gpu];
    if (!g->last_s) g->last_s = now, g->energy_mj = 1e6;
    double passed_s = floor((now - g->last_s) / tick_s) * tick_s;
    if (passed_s <= 0) return;
    g->energy_mj += passed_s * power_w(gpu) * 1e3;
    g->last_s += passed_s;
}

static int set_clock(void *handle, uint32_t mhz) {
    int gpu = index_of(handle), error = enter();
    if (error) return error;
    if (gpu < 0 || gpu >= count()) error = INVALID;
    else if (getenv("STANDIN_NO_PERMISSION")) error = NO_PERMISSION;
    else {
        integrate(gpu);
        gpus[gpu].before_mhz = (uint32_t)clock_mhz(gpu);
        gpus[gpu].locked_mhz = mhz;
        gpus[gpu].set_s = now_s();
        if (mhz) gpus[gpu].num_sets++;
        else gpus[gpu].num_resets++;
    }
    leave();
    return error;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; int e = enter(); if (!e) leave(); return e; }
int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int error) {
    switch (error) {
        case OK: return "Success";
        case INVALID: return "Invalid Argument";
        case NOT_SUPPORTED: return "Not Supported";
        case NO_PERMISSION: return "Insufficient Permissions";
        case NOT_FOUND: return "Not Found";
        case DRIVER_NOT_LOADED: return "Driver Not Loaded";
        default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "stand-in"); return OK; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = (unsigned)count(); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned gpu, void **handle) {
    if ((int)gpu >= count()) return INVALID;
    *handle = (void *)(intptr_t)(gpu + 1);
    return OK;
}

int nvmlDeviceGetIndex(void *handle, unsigned *gpu) { *gpu = (unsigned)index_of(handle); return OK; }

int nvmlDeviceGetName(void *handle, char *name, unsigned size) {
    const char *text = getenv("STANDIN_NAME");
    if (!text) text = "NVIDIA A100-SXM4-40GB";
    for (int i = index_of(handle); i > 0 && strchr(text, ';'); i--) text = strchr(text, ';') + 1;
    snprintf(name, size, "%.*s", (int)strcspn(text, ";"), text);
    return OK;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned size) {
    snprintf(uuid, size, "GPU-%08x-0000-0000-0000-000000000000", 0xa0000000u + (unsigned)index_of(handle));
    return OK;
}

int nvmlDeviceGetArchitecture(void *handle, unsigned *arch) {
    *arch = listed("STANDIN_NO_COUNTER", index_of(handle)) ? 4 : 7;
    return OK;
}

int nvmlDeviceGetC2cModeInfoV(void *handle, void *info) { (void)handle, (void)info; return NOT_SUPPORTED; }

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    *current = *pending = (unsigned)listed("STANDIN_MIG", index_of(handle));
    return OK;
}

int nvmlDeviceGetPersistenceMode(void *handle, unsigned *mode) {
    *mode = !listed("STANDIN_NO_PERSISTENCE", index_of(handle));
    return OK;
}

int nvmlDeviceSetGpuLockedClocks(void *handle, unsigned low, unsigned high) {
    return low > high ? INVALID : set_clock(handle, high);
}

int nvmlDeviceResetGpuLockedClocks(void *handle) { return set_clock(handle, 0); }

int nvmlDeviceGetClockInfo(void *handle, unsigned type, unsigned *mhz) {
    if (type > 2) return NOT_SUPPORTED;
    int error = enter();
    if (error) return error;
    *mhz = type == 2 ? 1215u : (unsigned)clock_mhz(index_of(handle));
    leave();
    return OK;
}

int nvmlDeviceGetSupportedMemoryClocks(void *handle, unsigned *n, unsigned *mhz) {
    (void)handle;
    if (!mhz || *n < 1) { *n = 1; return INSUFFICIENT_SIZE; }
    *n = 1, mhz[0] = 1215;
    return OK;
}

int nvmlDeviceGetSupportedGraphicsClocks(void *handle, unsigned memory, unsigned *n, unsigned *mhz) {
    int low, top, step;
    (void)handle, (void)memory;
    clocks(&low, &top, &step);
    unsigned all = (unsigned)((top - low) / step + 1);
    if (!mhz || *n < all) { *n = all; return INSUFFICIENT_SIZE; }
    for (unsigned i = 0; i < all; i++) mhz[i] = (unsigned)(top - (int)i * step);
    *n = all;
    return OK;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *reasons) {
    int bits, lost, gpu = index_of(handle), error = enter();
    if (error) return error;
    throttle(gpu, &bits, &lost);
    *reasons = (unsigned)bits | (gpus[gpu].locked_mhz ? 2u : 0u) | (number("STANDIN_LOAD", 1) > 0 ? 0u : 1u);
    leave();
    return OK;
}

int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *mj) {
    int gpu = index_of(handle);
    if (listed("STANDIN_NO_COUNTER", gpu)) return NOT_SUPPORTED;
    if (listed("STANDIN_STUCK_COUNTER", gpu)) { *mj = 12345; return OK; }
    int error = enter();
    if (error) return error;
    integrate(gpu);
    *mj = (unsigned long long)gpus[gpu].energy_mj;
    leave();
    return OK;
}

static int read_power(int gpu, unsigned *mw) {
    if (listed("STANDIN_NO_POWER", gpu)) return NOT_SUPPORTED;
    int error = enter();
    if (error) return error;
    *mw = (unsigned)(power_w(gpu) * 1e3 * number("STANDIN_POWER_BIAS", 1));
    leave();
    return OK;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *mw) { return read_power(index_of(handle), mw); }
int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *mw) { (void)handle; *mw = 400000; return OK; }

typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency_us;
    uint32_t type;
    int32_t error;
    union { unsigned mw; double d; unsigned long long ull; } value;
} FieldValue;

int nvmlDeviceGetFieldValues(void *handle, int n, FieldValue *values) {
    for (int i = 0; i < n; i++) {
        values[i].type = 1;
        values[i].error = values[i].field == 185 || values[i].field == 186
            ? read_power(index_of(handle), &values[i].value.mw) : NOT_SUPPORTED;
    }
    return OK;
}

int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *celsius) {
    (void)handle, (void)sensor;
    *celsius = (unsigned)number("STANDIN_TEMPERATURE", 45);
    return OK;
}

typedef struct { unsigned version; int sensor; int celsius; } Temperature;

int nvmlDeviceGetTemperatureV(void *handle, Temperature *temperature) {
    (void)handle;
    temperature->celsius = (int)number("STANDIN_TEMPERATURE", 45);
    return OK;
}

typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } Process;

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *n, Process *processes) {
    unsigned there = (unsigned)listed("STANDIN_BUSY", index_of(handle));
    if (!there) { *n = 0; return OK; }
    if (!processes || *n < 1) { *n = 1; return INSUFFICIENT_SIZE; }
    *n = 1;
    processes[0] = (Process){.pid = 1, .memory = 1ull << 30, .instance = ~0u, .compute = ~0u};
    return OK;
}
