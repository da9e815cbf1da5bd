/* An NVML library for tests. Its GPUs are healthy H100s, except for what the file named by NVIDIA_STUB_FILE says, one line for one answer:
 *
 *   gpus = 8                            how many there are (2 without it)
 *   nvmlDeviceGetTemperature@3 = 93     this function, asked about GPU 3; without @3: about any
 *   nvmlDeviceGetNvLinkState@3.4 = 0    and about its link 4 (or sensor, counter, peer …); .4 without @3: of any GPU
 *   nvmlDeviceGetRemappedRows = 1 2 0 1 a function with several answers
 *   CALL = !15                          it fails with this code of nvml.h
 *   CALL = hang / crash                 it never returns / it ends the process by SIGSEGV
 *
 * A function that a driver lacks is taken away at build time: -DnvmlX=lacking_nvmlX. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int Return;
typedef unsigned long Device; /* index + 1; MIG devices above 1000 */
typedef unsigned long long Number;
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25, NONE = -1 };
enum { LINES = 400, LINKS = 18, MIG = 7 };

static char keys[LINES][96], values[LINES][128];
static int lines = -1;

static void load(void) {
  if (lines >= 0) return;
  lines = 0;
  const char *path = getenv("NVIDIA_STUB_FILE");
  FILE *file = path ? fopen(path, "r") : NULL;
  char line[256];
  while (file && lines < LINES && fgets(line, sizeof line, file)) {
    char *equal = strstr(line, " = ");
    if (line[0] == '#' || !equal) continue;
    *equal = 0;
    line[strcspn(line, " ")] = 0;
    equal[3 + strcspn(equal + 3, "\n")] = 0;
    snprintf(keys[lines], sizeof keys[0], "%s", line);
    snprintf(values[lines++], sizeof values[0], "%s", equal + 3);
  }
  if (file) fclose(file);
}

static const char *exact(const char *key) {
  for (int i = 0; i < lines; i++)
    if (strcmp(keys[i], key) == 0) return values[i];
  return NULL;
}

static const char *find(const char *call, long gpu, long sub) {
  char key[128];
  const char *found;
  load();
  snprintf(key, sizeof key, "%s@%ld.%ld", call, gpu, sub);
  if ((found = exact(key))) return found;
  snprintf(key, sizeof key, "%s@%ld", call, gpu);
  if ((found = exact(key))) return found;
  snprintf(key, sizeof key, "%s.%ld", call, sub);
  return (found = exact(key)) ? found : exact(call);
}

/* The scenario's answer or the usual one, "!3" being an error. */
static Return ask(const char *call, long gpu, long sub, const char *usual, const char **out) {
  const char *value = find(call, gpu, sub);
  if (!value) value = usual;
  if (strcmp(value, "hang") == 0) for (;;) pause();
  if (strcmp(value, "crash") == 0) { signal(SIGSEGV, SIG_DFL); raise(SIGSEGV); }
  *out = value;
  return value[0] == '!' ? atoi(value + 1) : SUCCESS;
}

static Number number(const char *text, int position) {
  char *end = (char *)text;
  Number found = 0;
  for (int i = 0; i <= position; i++) found = strtoull(end, &end, 0);
  return found;
}

static Return text(char *buffer, unsigned length, const char *value) {
  if (strlen(value) + 1 > length) return INSUFFICIENT_SIZE;
  strcpy(buffer, value);
  return SUCCESS;
}

#define ASK(gpu, sub, usual) const char *v; Return rc = ask(__func__, gpu, sub, usual, &v); if (rc != SUCCESS) return rc
#define GPU ((long)device - 1)
#define ONE(NAME, TYPE, USUAL) Return NAME(Device device, TYPE *out) { ASK(GPU, NONE, USUAL); *out = (TYPE)number(v, 0); return SUCCESS; }
#define TWO(NAME, USUAL) Return NAME(Device device, unsigned *a, unsigned *b) { ASK(GPU, NONE, USUAL); *a = number(v, 0); *b = number(v, 1); return SUCCESS; }
#define TEXT(NAME, USUAL) Return NAME(Device device, char *b, unsigned n) { ASK(GPU, NONE, USUAL); return text(b, n, v); }

Return nvmlInitWithFlags(unsigned flags) { (void)flags; ASK(NONE, NONE, "0"); return SUCCESS; }
Return nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(Return code) { (void)code; return "stub"; }
Return nvmlSystemGetDriverVersion(char *b, unsigned n) { ASK(NONE, NONE, "580.95.05"); return text(b, n, v); }
Return nvmlSystemGetNVMLVersion(char *b, unsigned n) { ASK(NONE, NONE, "13.580.95.05"); return text(b, n, v); }
Return nvmlSystemGetCudaDriverVersion_v2(int *out) { ASK(NONE, NONE, "13000"); *out = number(v, 0); return SUCCESS; }
static unsigned gpus(void) { const char *v = find("gpus", NONE, NONE); return v ? number(v, 0) : 2; }
Return nvmlDeviceGetCount_v2(unsigned *n) { ASK(NONE, NONE, "0"); *n = gpus(); return SUCCESS; }
Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *out) {
  if (index >= gpus()) return INVALID_ARGUMENT;
  ASK((long)index, NONE, "0");
  *out = index + 1;
  return SUCCESS;
}

TEXT(nvmlDeviceGetName, "NVIDIA H100 80GB HBM3")
TEXT(nvmlDeviceGetVbiosVersion, "96.00.A5.00.01")
Return nvmlDeviceGetGspFirmwareVersion(Device device, char *b) { ASK(GPU, NONE, "580.95.05"); strcpy(b, v); return SUCCESS; }
Return nvmlDeviceGetUUID(Device device, char *b, unsigned n) {
  char usual[64];
  snprintf(usual, sizeof usual, "GPU-00000000-0000-0000-0000-%012lu", device - 1);
  ASK(GPU, NONE, usual);
  return text(b, n, v);
}
Return nvmlDeviceGetHandleByUUID(const char *wanted, Device *out) {
  char own[96];
  for (*out = 1; *out <= gpus(); ++*out)
    if (nvmlDeviceGetUUID(*out, own, sizeof own) == SUCCESS && strcmp(own, wanted) == 0) return SUCCESS;
  return NOT_FOUND;
}
typedef struct { char legacy[16]; unsigned domain, bus, device, ids, subsystem; char id[32]; } Pci;
Return nvmlDeviceGetPciInfo_v3(Device device, Pci *out) {
  ASK(GPU, NONE, "0");
  memset(out, 0, sizeof *out);
  snprintf(out->id, sizeof out->id, "00000000:%02lX:00.0", 0x18 + device);
  return SUCCESS;
}
typedef struct { Number total, free, used; } Memory;
Return nvmlDeviceGetMemoryInfo(Device device, Memory *m) {
  ASK(GPU, NONE, "85520809984 609615872");
  m->total = number(v, 0); m->used = number(v, 1); m->free = m->total - m->used;
  return SUCCESS;
}
/* What the driver keeps for itself is used in the first version, and apart in the second. Measured on an idle H100, driver 580.159.04. */
typedef struct { unsigned version; Number total, reserved, free, used; } Memory2;
Return nvmlDeviceGetMemoryInfo_v2(Device device, Memory2 *m) {
  Memory whole;
  Return told = nvmlDeviceGetMemoryInfo(device, &whole);
  if (told != SUCCESS) return told;
  m->reserved = (Number)480 << 20;
  m->total = whole.total; m->free = whole.free;
  m->used = whole.used > m->reserved ? whole.used - m->reserved : 0;
  return SUCCESS;
}
Return nvmlDeviceGetBAR1MemoryInfo(Device device, Memory *m) {
  ASK(GPU, NONE, "137438953472 1048576");
  m->total = number(v, 0); m->free = m->total - number(v, 1); m->used = number(v, 1);
  return SUCCESS;
}
typedef struct { unsigned gpu, memory; } Rates;
Return nvmlDeviceGetUtilizationRates(Device device, Rates *r) { ASK(GPU, NONE, "3 1"); r->gpu = number(v, 0); r->memory = number(v, 1); return SUCCESS; }
TWO(nvmlDeviceGetCudaComputeCapability, "9 0")
TWO(nvmlDeviceGetMigMode, "0 0")
TWO(nvmlDeviceGetEccMode, "1 1")
Return nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *n) { ASK(GPU, NONE, "7"); *n = number(v, 0); return SUCCESS; }
Return nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *out) { ASK(GPU, (long)index, "!6"); *out = 1000 * device + index; return SUCCESS; }
Return nvmlDeviceGetTotalEccErrors(Device device, int type, int counter, Number *n) { ASK(GPU, type * 2 + counter, "0"); *n = number(v, 0); return SUCCESS; }
Return nvmlDeviceGetTemperature(Device device, int sensor, unsigned *t) { ASK(GPU, sensor, "41"); *t = number(v, 0); return SUCCESS; }
Return nvmlDeviceGetTemperatureThreshold(Device device, int which, unsigned *t) { ASK(GPU, which, which ? "89" : "92"); *t = number(v, 0); return SUCCESS; }
Return nvmlDeviceGetApplicationsClock(Device device, int kind, unsigned *mhz) { ASK(GPU, kind, "1980"); *mhz = number(v, 0); return SUCCESS; }
Return nvmlDeviceGetDefaultApplicationsClock(Device device, int kind, unsigned *mhz) { ASK(GPU, kind, "1980"); *mhz = number(v, 0); return SUCCESS; }
typedef struct { unsigned environment, feature, tools; } Confidential;
Return nvmlSystemGetConfComputeState(Confidential *c) { ASK(NONE, NONE, "0"); memset(c, 0, sizeof *c); c->feature = number(v, 0); return SUCCESS; }
Return nvmlSystemGetConfComputeGpusReadyState(unsigned *ready) { ASK(NONE, NONE, "0"); *ready = number(v, 0); return SUCCESS; }
typedef struct { unsigned version; int margin; } Margin;
Return nvmlDeviceGetMarginTemperature(Device device, Margin *out) { ASK(GPU, NONE, "46"); out->margin = atoi(v); return SUCCESS; }
Return nvmlDeviceGetClockInfo(Device device, int kind, unsigned *mhz) { ASK(GPU, kind, "1980"); *mhz = number(v, 0); return SUCCESS; }
Return nvmlDeviceGetMaxClockInfo(Device device, int kind, unsigned *mhz) { ASK(GPU, kind, "1980"); *mhz = number(v, 0); return SUCCESS; }
TWO(nvmlDeviceGetPowerManagementLimitConstraints, "200000 700000")
ONE(nvmlDeviceGetPowerUsage, unsigned, "310000")
ONE(nvmlDeviceGetEnforcedPowerLimit, unsigned, "700000")
ONE(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, "700000")
ONE(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "5")
ONE(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, "5")
ONE(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "16")
ONE(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "16")
ONE(nvmlDeviceGetPcieReplayCounter, unsigned, "0")
ONE(nvmlDeviceGetPersistenceMode, unsigned, "1")
ONE(nvmlDeviceGetDisplayActive, unsigned, "0")
ONE(nvmlDeviceGetComputeMode, unsigned, "0")
ONE(nvmlDeviceGetVirtualizationMode, unsigned, "0")
ONE(nvmlDeviceGetArchitecture, unsigned, "9")
ONE(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, "!3")
ONE(nvmlDeviceGetCurrentClocksEventReasons, Number, "1")
ONE(nvmlDeviceGetSupportedClocksEventReasons, Number, "0x1ff")
ONE(nvmlDeviceGetCurrentClocksThrottleReasons, Number, "1")
ONE(nvmlDeviceGetSupportedClocksThrottleReasons, Number, "0x1ff")
Return nvmlDeviceValidateInforom(Device device) { ASK(GPU, NONE, "0"); return SUCCESS; }

typedef struct { unsigned version; Number counts[11]; unsigned exceeded; } Sram;
Return nvmlDeviceGetSramEccErrorStatus(Device device, Sram *out) { ASK(GPU, NONE, "0"); out->exceeded = number(v, 0); return SUCCESS; }
Return nvmlDeviceGetRemappedRows(Device device, unsigned *c, unsigned *u, unsigned *pending, unsigned *failed) {
  ASK(GPU, NONE, "0 0 0 0");
  *c = number(v, 0); *u = number(v, 1); *pending = number(v, 2); *failed = number(v, 3);
  return SUCCESS;
}
Return nvmlDeviceGetRowRemapperHistogram(Device device, unsigned *out) {
  ASK(GPU, NONE, "2560 0 0 0 0");
  for (int i = 0; i < 5; i++) out[i] = number(v, i);
  return SUCCESS;
}
Return nvmlDeviceGetRetiredPages(Device device, int cause, unsigned *count, Number *pages) {
  ASK(GPU, cause, "!3");
  unsigned there = number(v, 0);
  if (!pages || *count < there) { *count = there; return there ? INSUFFICIENT_SIZE : SUCCESS; }
  for (unsigned i = 0; i < there; i++) pages[i] = 0x10000ULL * i;
  *count = there;
  return SUCCESS;
}
typedef struct { unsigned version, channel, tpc; } Repair;
Return nvmlDeviceGetRepairStatus(Device device, Repair *out) { ASK(GPU, NONE, "0 0"); out->channel = number(v, 0); out->tpc = number(v, 1); return SUCCESS; }
typedef struct { unsigned field, scope; long long time, latency; int type; Return code; union { unsigned u; Number ull; } value; } Field;
Return nvmlDeviceGetFieldValues(Device device, int count, Field *out) { /* field N of link L: .N, and for links @GPU.(N * 100 + L) */
  for (int i = 0; i < count; i++) {
    const char *v;
    long sub = out[i].field >= 206 && out[i].field <= 222 ? out[i].field * 100L + out[i].scope : (long)out[i].field;
    out[i].code = ask(__func__, GPU, sub, out[i].field == 230 ? "0" : "!3", &v);
    out[i].type = out[i].field == 270 || out[i].field == 271 ? 3 : 1; /* unsigned long long for nanoseconds */
    out[i].value.ull = out[i].code == SUCCESS ? number(v, 0) : 0;
  }
  return SUCCESS;
}

typedef struct { unsigned version; unsigned char uuid[16]; Return status; unsigned clique; unsigned char state; unsigned mask; } Fabric;
Return nvmlDeviceGetGpuFabricInfoV(Device device, Fabric *out) { /* state, status, health mask, clique */
  if (out->version != 0x02000024) return VERSION_MISMATCH;
  ASK(GPU, NONE, "3 0 0x11aa 0");
  out->state = number(v, 0); out->status = number(v, 1); out->mask = number(v, 2); out->clique = number(v, 3);
  return SUCCESS;
}
Return nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *up) {
  const char *count = find("links", NONE, NONE);
  if (link >= (count ? number(count, 0) : LINKS)) return NOT_SUPPORTED;
  ASK(GPU, (long)link, "1");
  *up = number(v, 0);
  return SUCCESS;
}
Return nvmlDeviceGetNvLinkVersion(Device device, unsigned link, unsigned *out) { ASK(GPU, (long)link, "4"); *out = number(v, 0); return SUCCESS; }
Return nvmlDeviceGetNvLinkErrorCounter(Device device, unsigned link, int counter, Number *out) { /* .(link * 10 + counter) */
  ASK(GPU, link * 10L + counter, "0");
  *out = number(v, 0);
  return SUCCESS;
}
Return nvmlDeviceGetP2PStatus(Device device, Device other, int index, int *out) { /* .(peer * 10 + capability) */
  ASK(GPU, ((long)other - 1) * 10 + index, "0");
  *out = number(v, 0);
  return SUCCESS;
}

/* "pid MiB" of the one process, 0 being this one, MiB 0 not available; "none" for no process. */
typedef struct { unsigned pid; Number memory; unsigned instance, compute; } Process;
static Return processes(const char *v, unsigned *count, Process *out) {
  if (v[0] == 'n') { *count = 0; return SUCCESS; }
  if (*count < 1) { *count = 1; return INSUFFICIENT_SIZE; }
  *count = 1;
  out[0].pid = number(v, 0) ? number(v, 0) : (Number)getpid();
  out[0].memory = number(v, 1) ? number(v, 1) << 20 : ~0ULL;
  out[0].instance = out[0].compute = 0xffffffff;
  return SUCCESS;
}
Return nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned *count, Process *out) { ASK(GPU, NONE, "none"); return processes(v, count, out); }
Return nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *out) { ASK(GPU, NONE, "none"); return processes(v, count, out); }
