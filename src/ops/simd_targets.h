// Which instruction sets Highway compiles our kernels for; include before any Highway header.
//
// On x86: AVX-512, AVX2 with FMA and F16C, and plain scalar code for what is older. The targets
// left out would double the time to compile and serve no machine on which an LLM is worth running;
// those with vectors of unknown length (SVE, RISC-V V) cannot keep arrays of vectors in registers,
// and NEON serves the same ARM machines. A file that multiplies bytes defines
// WINNOW_BYTE_PRODUCTS first and is also compiled for AVX-512 with VNNI.
#pragma once

#ifdef WINNOW_BYTE_PRODUCTS
#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#else
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
