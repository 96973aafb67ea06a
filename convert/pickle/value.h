#ifndef TESSERA_CONVERT_PICKLE_VALUE_H_
#define TESSERA_CONVERT_PICKLE_VALUE_H_

// The contents of a Python pickle, as data. No name is resolved and nothing is called: an object is
// a record of the name that Python would call and of its arguments.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "nlohmann/json.hpp"
#include "storage/file_cursor.h"

namespace tessera::ckpt::pickle {

enum class Kind : uint8_t {
  kAbsent,  // of an absent Value: an index out of range, a missing key
  kNone,
  kBool,
  kInt,    // of any size
  kFloat,  // a double
  kText,   // str
  kBytes,
  kByteArray,  // of protocol 5; before, it is a call with bytes
  kTuple,
  kList,
  kDict,
  kSet,           // or frozenset
  kGlobal,        // "module.name"
  kObject,        // a global called with arguments, with the state and items set afterwards
  kPersistentId,  // what the program that loads the pickle has to provide
};

// Returns "dict", "object", ..., for messages.
std::string_view KindName(Kind kind);

using tessera::Extent;  // of the file that holds the pickle

using NodeId = uint32_t;
struct Nodes;

// A handle on one node of a pickle, valid as long as the Pickle. Nodes form a graph, in which a
// node can be reached in several ways, and from itself, so a walk over the graph has to be bounded.
// Every accessor may be called on a value of any kind, and returns nullopt, 0 or an absent value if
// it does not apply.
class Value {
 public:
  Value() = default;
  Value(const Nodes* nodes, NodeId id) : nodes_(nodes), id_(id) {}

  Kind kind() const;
  bool present() const { return nodes_ != nullptr; }
  bool is(Kind wanted) const { return kind() == wanted; }
  NodeId id() const { return id_; }  // equal for the same node of one pickle

  std::optional<bool> AsBool() const;
  std::optional<int64_t> AsInt() const;    // nullopt for an int beyond 64 bits
  std::optional<uint64_t> AsUint() const;  // nullopt for a negative one, too
  std::optional<double> AsFloat() const;   // of a float only

  // Returns a text: UTF-8 as in the file, unchecked, since Python allows surrogates. Nullopt for a
  // text longer than kMaxTextBytes; see extent().
  std::optional<std::string_view> AsText() const;
  bool IsText(std::string_view text) const;

  // Returns where the contents are in the file, so that they can be read in place: of bytes, of a
  // text longer than kMaxTextBytes, and of an int beyond 64 bits.
  std::optional<Extent> extent() const;

  // Returns the elements of a tuple, list or set, or those appended to an object.
  size_t size() const;
  Value operator[](size_t index) const;

  // Returns the entries of a dict in the order of the file, or those set on an object (an
  // OrderedDict). A key may occur twice; Python keeps the last.
  size_t entry_count() const;
  std::pair<Value, Value> entry(size_t index) const;
  // Returns all entries, for a loop over keys and values.
  struct Entries;
  Entries entries() const;
  // Returns the value of the last entry with that text as its key. Linear in the number of entries.
  Value Find(std::string_view key) const;

  // Returns the name of a global, "collections.OrderedDict", cut if it is longer than any real one;
  // empty for anything else.
  std::string GlobalName() const;
  bool IsGlobal(std::string_view module_and_name) const;

  // Returns the parts of an object; absent for any other value.
  Value callable() const;   // what is called: nearly always a global
  Value arguments() const;  // nearly always a tuple
  Value keyword_arguments() const;
  Value state() const;  // for __setstate__ or __dict__
  bool IsObjectOf(std::string_view module_and_name) const;

  // Returns the value of a persistent id: a tuple in torch's files.
  Value persistent_id() const;

 private:
  const Nodes* nodes_ = nullptr;
  NodeId id_ = 0;
};

struct Value::Entries {
  struct Iterator {
    const Value& dict;
    size_t index;
    std::pair<Value, Value> operator*() const { return dict.entry(index); }
    void operator++() { ++index; }
    bool operator==(const Iterator& other) const { return index == other.index; }
  };
  Value dict;
  Iterator begin() const { return {dict, 0}; }
  Iterator end() const { return {dict, dict.entry_count()}; }
};
inline Value::Entries Value::entries() const { return {*this}; }

// Limit of texts in memory; longer ones stay in the file.
inline constexpr uint64_t kMaxTextBytes = uint64_t{1} << 20;

// A pickle that was read; movable. See read.h.
class Pickle {
 public:
  explicit Pickle(std::unique_ptr<const Nodes> nodes);
  Pickle(Pickle&&) noexcept;
  Pickle& operator=(Pickle&&) noexcept;
  ~Pickle();

  Value root() const;
  // Returns a node, numbered in the order of the pickle. Precondition: id < node_count().
  Value at(NodeId id) const { return {nodes_.get(), id}; }
  // Returns the file offset of the first byte after the pickle.
  uint64_t end_offset() const;
  // Returns the number of bytes of the pickle in the file.
  uint64_t size_bytes() const;
  size_t node_count() const;
  // Returns an estimate of the memory in use.
  size_t memory_bytes() const;

 private:
  std::unique_ptr<const Nodes> nodes_;
};

// In protocol 2, Python 3 writes bytes as _codecs.encode(text, "latin1"). Returns the bytes of such
// a text, which has a character for each byte; nullopt for other texts.
std::optional<std::string> DecodeLatin1(std::string_view utf8);

// Limit of texts in JSON. Settings of models are short, and a pickle may refer to a long text any
// number of times.
inline constexpr size_t kMaxJsonTextBytes = 200;

// Returns a truth value, number or UTF-8 text. Null for values without a form in JSON, for longer
// texts, and for containers.
nlohmann::json ScalarToJson(const Value& value);

// Calls `visit` with each part of a value and its index or key; nullopt for a part of an object.
// Returns the first error.
template <typename Visit>
absl::Status ForEachPart(const Value& value, const Visit& visit) {
  for (size_t i = 0; i < value.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(visit(absl::StrCat(i), value[i]));
  }
  for (const auto& [key, child] : value.entries()) {
    const std::string number = absl::StrCat(key.AsInt().value_or(0));
    TESSERA_RETURN_IF_ERROR(visit(key.AsText().value_or(number), child));
  }
  for (const Value& part :
       {value.callable(), value.arguments(), value.keyword_arguments(), value.state()}) {
    if (part.present()) TESSERA_RETURN_IF_ERROR(visit(std::nullopt, part));
  }
  return absl::OkStatus();
}

// Returns an object of the entries of a dict that have such a value, and UTF-8 texts as keys. Lists
// and tuples are there as empty arrays.
nlohmann::json DictToJson(const Value& dict);

// Bounds the data that is made from a pickle by its size in the file. Two bytes can refer to an
// object or a text that is there already, so a small pickle can stand for any number of long names
// or lists. Code that copies texts, or walks over objects, first takes the bytes that it needs from
// a budget.
class Budget {
 public:
  explicit Budget(const Pickle& contents) : Budget(contents.size_bytes()) {}
  // Makes a budget for several pickles whose places are listed in a file of this size.
  explicit Budget(uint64_t input_bytes) : bytes_left_(kRatio * input_bytes + kAllowanceBytes) {}

  void AddInput(uint64_t input_bytes) { bytes_left_ += kRatio * input_bytes; }

  // Takes bytes; returns false once nothing is left. Visiting an object costs kVisitBytes.
  bool Has(uint64_t bytes) {
    if (bytes > bytes_left_) return false;
    bytes_left_ -= bytes;
    return true;
  }

  // Takes bytes; returns an error once nothing is left.
  absl::Status Take(uint64_t bytes) {
    if (Has(bytes)) return absl::OkStatus();
    return DataLoss(
        "objects and names that it refers to again and again stand for many times its size");
  }

  static constexpr uint64_t kVisitBytes = 8;
  // Ratio of the budget to the bytes in the file. A tensor takes three times its bytes in the file,
  // and a second name of a tensor ten times.
  static constexpr uint64_t kRatio = 16;
  static constexpr uint64_t kAllowanceBytes = uint64_t{256} << 10;

 private:
  uint64_t bytes_left_;
};

// Returns the integers of a tuple, a list or a torch.Size; nullopt if it holds anything else, or
// more of them than a tensor has dims.
std::optional<std::vector<int64_t>> DimsOf(const Value& value);

}  // namespace tessera::ckpt::pickle

#endif  // TESSERA_CONVERT_PICKLE_VALUE_H_
