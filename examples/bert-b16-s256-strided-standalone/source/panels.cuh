// How matrices lie in shared memory where warpgroup products read them.
#pragma once

namespace atoffer {

// Matrices of 16-bit elements lie in shared memory as panels of 64 columns: a row of a panel is 128 bytes, and its
// 16-byte vectors stand at their number XOR (row % 8). That is the hardware's 128-byte swizzle, address bits 4-6 XORed
// with bits 7-9, where panels start at multiples of 1024 bytes. Byte offset of a vector in its panel:
__device__ __forceinline__ int panel_offset(int row, int vector) { return row * 128 + (vector ^ row % 8) * 16; }

// How a product finds such a matrix, `start` being the shared address of its first row and vector:
//   bits 0-13   start / 16
//   bits 16-29  leading offset / 16: from one panel to the next, where a transposed operand spans several
//   bits 32-45  stride offset / 16: from 8 rows to the next 8, 1024 bytes
//   bits 49-51  0: the pattern of the swizzle begins at a multiple of 1024 bytes
//   bits 62-63  1: the 128-byte swizzle
//
// A product sums over a depth of 16 elements. Where the depth runs along the rows of a panel (queries, keys), the next
// 16 are 32 bytes further: bits 5 and 6 of the start, which the hardware XORs like any address. The leading offset
// means nothing then. Where the depth runs across rows ("transposed": values), the next 16 are two groups of 8 rows
// further, 2048 bytes, and each panel holds 64 elements of the other dimension.
class PanelDescriptor {
public:
    __device__ __forceinline__ PanelDescriptor(unsigned start, int panel_bytes)
        : low(start / 16 | static_cast<unsigned>(panel_bytes / 16) << 16) {}

    // That of the matrix so many bytes, a multiple of 16, further on.
    __device__ __forceinline__ unsigned long long at(int bytes) const {
        constexpr unsigned kHigh = 1024 / 16 | 1u << 30;
        return static_cast<unsigned long long>(kHigh) << 32 | (low + bytes / 16);
    }

private:
    unsigned low;
};

}  // namespace atoffer
