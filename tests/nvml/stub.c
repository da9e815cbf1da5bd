/* An NVML library for tests: two GPUs whose answers are healthy, except for what the environment variable TT_NVML says, a list of
 *   CALL=CODE    the function answers this error code (nvml.h); CALL@GPU=CODE only for one GPU
 *   CALL=hang    it never returns
 *   CALL=crash   it ends the process by SIGSEGV
 * and for TT_NVML_NAME and TT_NVML_DRIVER. Functions that a driver lacks are left out by -DOLD_DRIVER. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int Return;
typedef unsigned long Device; /* index + 1 */
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, GPUS = 2, LINKS = 18 };

static const char *setting(const char *name, const char *fallback) {
  const char *value = getenv(name);
  return value ? value : fallback;
}

static Return obey(const char *key, Return otherwise) {
  const char *plan = setting("TT_NVML", "");
  size_t length = strlen(key);
  for (const char *item = plan; item; item = strchr(item, ',') ? strchr(item, ',') + 1 : NULL) {
    if (strncmp(item, key, length) != 0 || item[length] != '=') continue;
    const char *word = item + length + 1;
    if (strncmp(word, "hang", 4) == 0) for (;;) pause();
    if (strncmp(word, "crash", 5) == 0) { signal(SIGSEGV, SIG_DFL); raise(SIGSEGV); }
    return atoi(word);
  }
  return otherwise;
}

static Return plan(const char *call, Device device, Return otherwise) {
  char key[128];
  snprintf(key, sizeof key, "%s@%lu", call, device - 1);
  Return found = obey(key, -1);
  return found >= 0 ? found : obey(call, otherwise);
}

#define GLOBAL(otherwise) Return rc = obey(__func__, otherwise); if (rc != SUCCESS) return rc
#define ONE(otherwise) Return rc = plan(__func__, device, otherwise); if (rc != SUCCESS) return rc

static Return text(char *buffer, unsigned length, const char *value) {
  if (strlen(value) + 1 > length) return INSUFFICIENT_SIZE;
  strcpy(buffer, value);
  return SUCCESS;
}

Return nvmlInitWithFlags(unsigned flags) { (void)flags; GLOBAL(SUCCESS); return SUCCESS; }
Return nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(Return code) { (void)code; return "stub"; }
Return nvmlSystemGetDriverVersion(char *b, unsigned n) { GLOBAL(SUCCESS); return text(b, n, setting("TT_NVML_DRIVER", "580.95.05")); }
Return nvmlSystemGetNVMLVersion(char *b, unsigned n) { GLOBAL(SUCCESS); return text(b, n, "13.580.95.05"); }
Return nvmlSystemGetCudaDriverVersion_v2(int *v) { GLOBAL(SUCCESS); *v = 13000; return SUCCESS; }
Return nvmlDeviceGetCount_v2(unsigned *n) { GLOBAL(SUCCESS); *n = GPUS; return SUCCESS; }
Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *out) {
  if (index >= GPUS) return INVALID_ARGUMENT;
  Device device = index + 1;
  ONE(SUCCESS);
  *out = device;
  return SUCCESS;
}
Return nvmlDeviceGetName(Device device, char *b, unsigned n) { ONE(SUCCESS); return text(b, n, setting("TT_NVML_NAME", "NVIDIA H100 80GB HBM3")); }
Return nvmlDeviceGetUUID(Device device, char *b, unsigned n) {
  char value[64];
  ONE(SUCCESS);
  snprintf(value, sizeof value, "GPU-00000000-0000-0000-0000-%012lu", device - 1);
  return text(b, n, value);
}
typedef struct { char legacy[16]; unsigned domain, bus, device, ids, subsystem; char id[32]; } Pci;
Return nvmlDeviceGetPciInfo_v3(Device device, Pci *out) {
  ONE(SUCCESS);
  memset(out, 0, sizeof *out);
  snprintf(out->id, sizeof out->id, "00000000:%02lX:00.0", 0x18 + device);
  return SUCCESS;
}
typedef struct { unsigned long long total, free, used; } Memory;
Return nvmlDeviceGetMemoryInfo(Device device, Memory *m) { ONE(SUCCESS); m->total = 85520809984ULL; m->used = 1ULL << 30; m->free = m->total - m->used; return SUCCESS; }
Return nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) { ONE(SUCCESS); *major = 9; *minor = 0; return SUCCESS; }
typedef struct { unsigned gpu, memory; } Rates;
Return nvmlDeviceGetUtilizationRates(Device device, Rates *r) { ONE(SUCCESS); r->gpu = 3; r->memory = 1; return SUCCESS; }
Return nvmlDeviceGetMigMode(Device device, unsigned *now, unsigned *pending) { ONE(SUCCESS); *now = *pending = 0; return SUCCESS; }
Return nvmlDeviceGetEccMode(Device device, unsigned *now, unsigned *pending) { ONE(SUCCESS); *now = *pending = 1; return SUCCESS; }
Return nvmlDeviceGetTotalEccErrors(Device device, int type, int counter, unsigned long long *n) { (void)type; (void)counter; ONE(SUCCESS); *n = 0; return SUCCESS; }
Return nvmlDeviceGetTemperature(Device device, int sensor, unsigned *t) { (void)sensor; ONE(SUCCESS); *t = 41; return SUCCESS; }
Return nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *up) {
  ONE(SUCCESS);
  if (link >= LINKS) return NOT_SUPPORTED;
  *up = link != 4;
  return SUCCESS;
}
#define NUMBER(NAME, VALUE) Return NAME(Device device, unsigned *out) { ONE(SUCCESS); *out = VALUE; return SUCCESS; }
NUMBER(nvmlDeviceGetEnforcedPowerLimit, 700000)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, 700000)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetPersistenceMode, 1)
NUMBER(nvmlDeviceGetDisplayActive, 0)
NUMBER(nvmlDeviceGetComputeMode, 0)
Return nvmlDeviceGetRetiredPagesPendingStatus(Device device, unsigned *out) { (void)out; ONE(NOT_SUPPORTED); return SUCCESS; }

typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } Process;
static Return processes(Device device, unsigned *count, Process *out) {
  if (device != 1) { *count = 0; return SUCCESS; }
  if (*count < 1) { *count = 1; return INSUFFICIENT_SIZE; }
  *count = 1;
  out[0].pid = getpid();
  out[0].memory = 512ULL << 20;
  out[0].instance = out[0].compute = 0xffffffff;
  return SUCCESS;
}

#ifdef OLD_DRIVER
Return nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long *out) { ONE(SUCCESS); *out = 0x204; return SUCCESS; }
Return nvmlDeviceGetSupportedClocksThrottleReasons(Device device, unsigned long long *out) { ONE(SUCCESS); *out = 0x1ff; return SUCCESS; }
Return nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned *count, Process *out) { ONE(SUCCESS); return processes(device, count, out); }
#else
Return nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long *out) { ONE(SUCCESS); *out = 1; return SUCCESS; }
Return nvmlDeviceGetSupportedClocksEventReasons(Device device, unsigned long long *out) { ONE(SUCCESS); *out = 0x1ff; return SUCCESS; }
Return nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *out) { ONE(SUCCESS); return processes(device, count, out); }
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetArchitecture, 9)
Return nvmlDeviceGetRemappedRows(Device device, unsigned *c, unsigned *u, unsigned *pending, unsigned *failed) {
  ONE(SUCCESS);
  *c = *u = *pending = *failed = 0;
  return SUCCESS;
}
typedef struct { unsigned version; unsigned char uuid[16]; Return status; unsigned clique; unsigned char state; unsigned mask; } Fabric;
Return nvmlDeviceGetGpuFabricInfoV(Device device, Fabric *out) { ONE(SUCCESS); out->state = 3; return SUCCESS; }
#endif
