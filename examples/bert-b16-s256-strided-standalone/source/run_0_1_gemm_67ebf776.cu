// qkv_gemm, qkv_bias
#include "gemm.cuh"

using namespace atoffer;
using Element = __half;
using Tiling = gemm::Tiling<Element, 128, 192, 64, 2, 4, 1, 3, 1>;  // tile m, n, k; warps m, n, k; stages; split k
constexpr int kColumns = 2304;

using SourceA = gemm::RowMajor<Element, 4096, 768>;
using SourceW = gemm::RowMajor<Element, kColumns, 768>;

using Prologue = gemm::NoPrologue;

struct Epilogue {
    const Element* __restrict__ bias;
    template <int V>
    __device__ __forceinline__ void operator()(float (&values)[V], int row, int column) const {
        gemm::add<Element>(values, bias + column);
    }
};

extern "C" __global__ void
__launch_bounds__(Tiling::kThreads, 1) gemm_0_1(
    const Element* __restrict__ x,
    const Element* __restrict__ w_qkv,
    const Element* __restrict__ b_qkv,
    Element* __restrict__ qkv) {
    const Epilogue epilogue{b_qkv};
    const Prologue prologue{};
    gemm::compute_tile<Tiling>(SourceA{x}, SourceW{w_qkv}, prologue, epilogue, qkv);
}
