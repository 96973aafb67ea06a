#ifndef TESSERA_LAYOUT_FOREIGN_PARAMETER_H_
#define TESSERA_LAYOUT_FOREIGN_PARAMETER_H_

// The places of an architecture's logical tensors in the parameters of another framework, which may
// transpose, fuse and stack them.

#include <cstdint>
#include <string>
#include <vector>

#include "layout/box.h"

namespace tessera {

// A box of a logical tensor that a parameter of the framework contains. The parameter may have more
// dims than the tensor: the block has an extent of 1 in each of the leading ones.
struct ForeignBlock {
  std::string name;         // of the logical tensor
  Shape offset;             // of the box in the logical tensor
  Shape shape;              // of the box
  Shape foreign_offset;     // of the box's first element in the parameter, one per dim there
  bool transposed = false;  // the last two dims are swapped in the parameter
  // Distance in the parameter of elements that are neighbours in the block, one per dim of the
  // parameter. Empty: 1 in each. A rotary embedding that interleaves its halves has a step of 2.
  Shape foreign_step;
};

// A whole parameter, as it is before tensor-parallel ranks cut it. Blocks are disjoint; elements in
// no block are padding and are ignored.
struct ForeignParameter {
  std::string name;
  Shape shape;
  int tensor_parallel_dim = -1;  // -1: every rank has all of it
  // Number of equal parts of that dim, each of which is cut among the ranks: gate and up in one
  // matrix.
  int64_t sections = 1;
  // Whether files may have more rows (dim 0) than `shape`; the rest is padding. A reader sets
  // shape[0] to the number that it finds.
  bool padded = false;
  std::vector<ForeignBlock> blocks;
  std::vector<std::string> other_names;  // of copies, such as a tied head
};

// Returns a parameter that is one logical tensor of this shape. The dim is the parameter's.
ForeignParameter SameTensor(std::string name, std::string logical_name, Shape shape,
                            int tensor_parallel_dim = -1);
// Returns a parameter that is the transpose of one logical matrix of `rows` x `columns`. The dim is
// the parameter's.
ForeignParameter TransposedMatrix(std::string name, std::string logical_name, int64_t rows,
                                  int64_t columns, int tensor_parallel_dim = -1);

// Joins parameters of equal shapes, one for each layer, into one with a leading dim of layers.
ForeignParameter StackLayers(std::string name, const std::vector<ForeignParameter>& layers);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_FOREIGN_PARAMETER_H_
