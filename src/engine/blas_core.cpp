#include "engine/blas_core.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace meshwright {

void start_again_for_blas(char** argv) {
#if defined(__x86_64__)
  if (std::getenv("OPENBLAS_CORETYPE") != nullptr || !__builtin_cpu_supports("avx2") ||
      !__builtin_cpu_supports("fma")) {
    return;
  }
  // Whichever BLAS is there: only OpenBLAS has this function.
  using CoreName = char* (*)();
  const auto name = reinterpret_cast<CoreName>(::dlsym(RTLD_DEFAULT, "openblas_get_corename"));
  if (name == nullptr) return;
  const std::string_view core = name();
  if (core != "Prescott" && core != "Core2" && core != "Nehalem" && core != "Generic") return;
  ::setenv("OPENBLAS_CORETYPE", "Haswell", 1);
  ::execv("/proc/self/exe", argv);  // On failure: slow, but right.
#else
  (void)argv;
#endif
}

}  // namespace meshwright
