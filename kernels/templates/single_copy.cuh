// Attention of all columns at once: copies. A thread copies the same vector of every kCopyRows-th row.
#pragma once

#include "single_layout.cuh"

namespace atoffer::single {

template <class Shape>
struct Copier {
    using Tile = Tiling<Shape>;
    using Element = typename Shape::Element;
    using Rows = Swizzle<Tile::kRowVectors>;
    static constexpr int kKeyBytes = Tile::kWidth * static_cast<int>(sizeof(Element));  // from a query to its key

    int first, vector;  // row and vector of the thread
    int rows, columns;  // that exist of the tile's rows, and that it has
    int query_at[Tile::kQueryCopies], column_at[Tile::kColumnCopies];  // where vectors of q lie, in elements
    unsigned query_to[Tile::kQueryCopies], key_to[Tile::kColumnCopies];  // where those of q and k come, by address

    // Reads the plan and computes all addresses: that needs no input.
    __device__ __forceinline__ Copier(int head_at, int first_row, const int* list, int columns, unsigned shared)
        : rows(Tile::kSeqLen - first_row), columns(columns) {
        first = static_cast<int>(threadIdx.x) / Tile::kRowVectors;
        vector = static_cast<int>(threadIdx.x) % Tile::kRowVectors;
        const int own = head_at + vector * Tile::kVectorElements;
#pragma unroll
        for (int i = 0; i < Tile::kQueryCopies; ++i) {
            query_at[i] = own + (place(i) < rows ? first_row + place(i) : 0) * Tile::kTokenStride;
            query_to[i] = shared + offset(i);
            settle(query_at[i]);
            settle(query_to[i]);
        }
#pragma unroll
        for (int i = 0; i < Tile::kColumnCopies; ++i) {
            column_at[i] = own + (place(i) < Tile::kColumns ? list[place(i)] : 0) * Tile::kTokenStride;
            key_to[i] = shared + Tile::kQueryBytes + offset(i);
            settle(column_at[i]);
            settle(key_to[i]);
        }
    }

    // The thread's i-th row of a matrix.
    __device__ __forceinline__ int place(int i) const { return first + i * Tile::kCopyRows; }

    // Rows that do not exist become zeros.
    __device__ __forceinline__ void copy_queries(const Element* qkv) const {
#pragma unroll
        for (int i = 0; i < Tile::kQueryCopies; ++i) {
            if (kEvenRows || place(i) < Tile::kRows) copy_or_clear<0, 0>(query_to[i], qkv + query_at[i], place(i) < rows);
        }
    }

    // Places without a column become zeros: their scores are dropped, their values multiplied by nothing but zeros.
    __device__ __forceinline__ void copy_keys(const Element* qkv) const {
#pragma unroll
        for (int i = 0; i < Tile::kColumnCopies; ++i) {
            if (!kEvenColumns && place(i) >= Tile::kColumns) continue;
            copy_or_clear<0, kKeyBytes>(key_to[i], qkv + column_at[i], place(i) < columns);
        }
    }

    __device__ __forceinline__ void copy_values(const Element* qkv) const {
        constexpr int kApart = Tile::kValuesAt - Tile::kQueryBytes;
#pragma unroll
        for (int i = 0; i < Tile::kColumnCopies; ++i) {
            if (!kEvenColumns && place(i) >= Tile::kColumns) continue;
            copy_or_clear<kApart, 2 * kKeyBytes>(key_to[i], qkv + column_at[i], place(i) < columns);
        }
    }

private:
    static constexpr bool kEvenRows = Tile::kRows % Tile::kCopyRows == 0;
    static constexpr bool kEvenColumns = Tile::kColumns % Tile::kCopyRows == 0;

    __device__ __forceinline__ int offset(int i) const {
        const int keys = Rows::key_sum(first) + Rows::key_sum(i * Tile::kCopyRows);
        return Rows::at(first, vector, keys) + i * Tile::kCopyRows * Tile::kRowVectors * kVectorBytes;
    }
};

}  // namespace atoffer::single
