#pragma once

namespace meshwright {

/// OpenBLAS takes a processor that is newer than itself for an ancient one and multiplies matrices
/// three to five times slower. When it did, and the processor has AVX2, this starts the program
/// again with OPENBLAS_CORETYPE=Haswell; otherwise, or when the variable is set, it does nothing.
/// Call it first of all.
void start_again_for_blas(char** argv);

}  // namespace meshwright
