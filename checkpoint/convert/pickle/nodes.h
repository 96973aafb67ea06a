#ifndef TESSERA_CHECKPOINT_CONVERT_PICKLE_NODES_H_
#define TESSERA_CHECKPOINT_CONVERT_PICKLE_NODES_H_

// How a pickle is kept in memory. An opcode of one byte adds at most one node, so that nodes are
// small and what only some of them have is kept apart.

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/convert/pickle/value.h"

namespace tessera::ckpt::pickle {

inline constexpr NodeId kNoNode = UINT32_MAX;
inline constexpr uint32_t kNoList = UINT32_MAX;

// Where the contents of a text or an int are.
enum class Place : uint8_t {
  kInMemory,
  kInFile,
  kUnsigned,  // an int between 2^63 and 2^64 - 1
};

// The meaning of `a` and `b` depends on the kind:
//   kBool, kInt, kFloat   a: the value's bits
//   kText, kBytes, kInt   a: offset in Nodes::text or in the file, b: length
//   kTuple                a: index into Nodes::tuple_elements, b: number of elements
//   kList, kDict, kSet    list: index into Nodes::lists; keys and values of a dict take turns
//   kGlobal               a, b: texts, the module and the name
//   kObject               a: index into Nodes::objects
//   kPersistentId         a: the node that identifies it
struct Node {
  Kind kind = Kind::kAbsent;
  Place place = Place::kInMemory;
  uint32_t list = kNoList;
  uint64_t a = 0;
  uint64_t b = 0;
};

struct Object {
  NodeId callable = kNoNode;
  NodeId arguments = kNoNode;
  NodeId keyword_arguments = kNoNode;
  NodeId state = kNoNode;
  uint32_t items = kNoList;
  uint32_t entries = kNoList;
};

struct Nodes {
  std::vector<Node> nodes;
  std::string text;
  std::vector<NodeId> tuple_elements;
  std::vector<std::vector<NodeId>> lists;
  std::vector<Object> objects;
  NodeId root = kNoNode;
  uint64_t end_offset = 0;
};

}  // namespace tessera::ckpt::pickle

#endif  // TESSERA_CHECKPOINT_CONVERT_PICKLE_NODES_H_
