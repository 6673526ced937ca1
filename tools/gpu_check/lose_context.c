// Preloaded into a run by replay_checks.py: a worker that gets SIGUSR2 loses the context of its GPU, because a kernel
// writes to an illegal address. Loads the driver itself, so that it can be compiled where there is no toolkit.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kModule[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry fail() { .reg .b64 %a; .reg .b32 %v; mov.u64 %a, 16; mov.u32 %v, 1; st.global.u32 [%a], %v; ret; }\n";

static int is_done(int result, const char* what) {
  if (result != 0) fprintf(stderr, "lose_context: %s: CUDA error %d\n", what, result);
  return result == 0;
}

static void lose_context(void) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == NULL) return;
  int (*retain)(void**, int) = (int (*)(void**, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
  int (*set_current)(void*) = (int (*)(void*))dlsym(driver, "cuCtxSetCurrent");
  int (*load)(void**, const void*) = (int (*)(void**, const void*))dlsym(driver, "cuModuleLoadData");
  int (*find)(void**, void*, const char*) = (int (*)(void**, void*, const char*))dlsym(driver, "cuModuleGetFunction");
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) =
      (int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**))dlsym(
          driver, "cuLaunchKernel");
  void* context = NULL;
  void* module = NULL;
  void* kernel = NULL;
  if (is_done(retain(&context, 0), "context") && is_done(set_current(context), "making it current") &&
      is_done(load(&module, kModule), "module") && is_done(find(&kernel, module, "fail"), "kernel"))
    is_done(launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "launch");
}

static void* wait_for_signal(void* signals) {
  int number = 0;
  while (sigwait((const sigset_t*)signals, &number) == 0) lose_context();
  return NULL;
}

// Runs before main(), so all threads have the signal blocked.
__attribute__((constructor)) static void start(void) {
  static sigset_t signals;
  static pthread_t thread;
  const char* const role = getenv("RP_ROLE");
  if (role == NULL || strcmp(role, "worker") != 0) return;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &signals, NULL);
  pthread_create(&thread, NULL, wait_for_signal, &signals);
}
