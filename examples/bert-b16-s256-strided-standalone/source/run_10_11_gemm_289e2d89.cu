// ffn1_gemm, ffn1_bias_act
#include "gemm.cuh"

using namespace atoffer;
using Element = __half;
using Tiling = gemm::Tiling<Element, 128, 128, 64, 2, 2, 1, 3, 1>;  // tile m, n, k; warps m, n, k; stages; split k
static_assert(Tiling::kSharedBytes == 98304, "the launch gives the shared memory that is laid out here");
constexpr int kColumns = 3072;

using SourceA = gemm::RowMajor<Element, 4096, 768>;
using SourceW = gemm::RowMajor<Element, kColumns, 768>;

using Prologue = gemm::NoPrologue;

struct Epilogue {
    const Element* __restrict__ bias;
    template <int V>
    __device__ __forceinline__ void operator()(float (&values)[V], int row, int column) const {
        gemm::add<Element>(values, bias + column);
        gemm::activate<atoffer::Gelu>(values);
    }
};

extern "C" __global__ void
__launch_bounds__(Tiling::kThreads, 1) gemm_10_11(
    const Element* __restrict__ attn_norm,
    const Element* __restrict__ w_ffn1,
    const Element* __restrict__ b_ffn1,
    Element* __restrict__ ffn1_act) {
    wait_for_inputs();
    const Epilogue epilogue{b_ffn1};
    const Prologue prologue{};
    gemm::compute_tile<Tiling>(SourceA{attn_norm}, SourceW{w_ffn1}, prologue, epilogue, ffn1_act);
}
