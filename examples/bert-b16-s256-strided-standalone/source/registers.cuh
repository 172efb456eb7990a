// Registers that warps give to others of their block, on sm_90a alone: every warp of a warpgroup gives some back, or waits
// for some that others gave back. On other chips all keep what they have.
#pragma once

#include "common.cuh"

namespace atoffer {

constexpr int kGroupWarps = 4;  // warps of a warpgroup, which give and take together

template <int REGISTERS>
__device__ __forceinline__ void shrink_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
}

template <int REGISTERS>
__device__ __forceinline__ void grow_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
}

}  // namespace atoffer
