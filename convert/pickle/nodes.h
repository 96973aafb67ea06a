#ifndef TESSERA_CONVERT_PICKLE_NODES_H_
#define TESSERA_CONVERT_PICKLE_NODES_H_

// The form of a pickle in memory. An opcode of one byte adds at most one node, so nodes are small,
// and the parts that only some of them have are kept apart.

#include <cstdint>
#include <string>
#include <vector>

#include "convert/pickle/value.h"

namespace tessera::ckpt::pickle {

inline constexpr NodeId kNoNode = UINT32_MAX;
inline constexpr uint32_t kNoList = UINT32_MAX;

// The place of the contents of a text or an int.
enum class Place : uint8_t {
  kInMemory,
  kInFile,
  kUnsigned,  // an int between 2^63 and 2^64 - 1
};

// The meaning of `a` and `b` depends on the kind:
//   kBool, kInt, kFloat   a: the value's bits
//   kText, kBytes, kInt   a: offset in Nodes::text or in the file, b: length
//   kTuple                a: index into Nodes::tuple_elements, b: number of elements
//   kList, kDict, kSet    a: index into Nodes::lists, or kNoList; keys and values of a dict take
//                         turns
//   kGlobal               a, b: texts, the module and the name
//   kObject               a: index into Nodes::objects
//   kPersistentId         a: the node that identifies it
struct Node {
  Kind kind : 8 = Kind::kAbsent;
  Place place : 8 = Place::kInMemory;
  uint64_t b : 48 = 0;
  uint64_t a = 0;
};
static_assert(sizeof(Node) == 16);
// The largest offset and length.
inline constexpr uint64_t kMaxExtent = (uint64_t{1} << 48) - 1;

// Elements of Nodes::list_elements. Appending to a full list moves it to the end.
struct List {
  uint64_t begin = 0;
  uint32_t size = 0;
  uint32_t capacity = 0;
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
  std::vector<List> lists;
  std::vector<NodeId> list_elements;
  std::vector<Object> objects;
  NodeId root = kNoNode;
  uint64_t begin_offset = 0;
  uint64_t end_offset = 0;
};

}  // namespace tessera::ckpt::pickle

#endif  // TESSERA_CONVERT_PICKLE_NODES_H_
