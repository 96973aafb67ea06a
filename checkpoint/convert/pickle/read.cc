#include "checkpoint/convert/pickle/read.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/status_macros.h"
#include "checkpoint/convert/pickle/byte_stream.h"
#include "checkpoint/convert/pickle/nodes.h"
#include "checkpoint/convert/pickle/text_forms.h"

namespace tessera::ckpt::pickle {
namespace {

constexpr uint8_t kHighestProtocol = 5;
constexpr size_t kSharedNodes = 1024;
constexpr uint64_t kMaxListElements = uint64_t{1} << 31;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// The stack machine of Python's pickle module, with a node in place of each Python object.
class Reader {
 public:
  Reader(const ReadableFile& file, Extent within, const ReadOptions& options)
      : stream_(file, within), max_nodes_(std::min<uint64_t>(options.max_nodes, kNoNode)) {}

  absl::StatusOr<Pickle> Run();

 private:
  using Operation = absl::Status (Reader::*)();
  struct Opcode {
    const char* name = nullptr;
    Operation run = nullptr;
  };
  static std::array<Opcode, 256> MakeOpcodes();

  absl::Status Wrong(std::string_view what) const { return absl::DataLossError(View(what)); }

  // Nodes.
  absl::StatusOr<NodeId> Add(const Node& node);
  absl::Status Push(const Node& node);
  absl::StatusOr<NodeId> AddText(std::string_view text);
  absl::StatusOr<NodeId> AddShared(const Node& node);
  // Appends what is on the stack from there on to a list, which may be kNoList and gets a number.
  absl::StatusOr<uint32_t> Extend(uint32_t list, size_t first_on_stack);
  absl::StatusOr<NodeId> AddTuple(size_t first_on_stack);
  absl::Status PushObject(NodeId callable, NodeId arguments, NodeId keyword_arguments = kNoNode);
  Node& NodeAt(NodeId id) { return nodes_->nodes[id]; }

  // The stack. Nothing is popped across a mark.
  absl::StatusOr<NodeId> Pop();
  absl::StatusOr<NodeId> Top();
  absl::StatusOr<size_t> PopMark();  // index of the first element above the mark
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  // Little-endian number of that many bytes.
  template <typename T>
  absl::StatusOr<T> ReadNumber() {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view bytes, stream_.ReadView(sizeof(T)));
    return LoadLittleEndian<T>(bytes.data());
  }
  absl::StatusOr<std::string> ReadLine() { return stream_.ReadLine(kMaxTextBytes); }

  // Operations, in the order of the table.
  absl::Status Proto();
  absl::Status Frame();
  absl::Status Stop();
  absl::Status Mark();
  absl::Status Discard();
  absl::Status DiscardToMark();
  absl::Status Duplicate();
  template <Kind kind, uint64_t bits = 0>
  absl::Status PushConstant() {
    return Push({.kind = kind, .a = bits});
  }
  template <typename T, bool is_signed = false>
  absl::Status PushInt();
  absl::Status PushDecimal(std::string_view digits, uint64_t offset);
  absl::Status PushIntLine();
  absl::Status PushLongLine();
  template <typename Length>
  absl::Status PushLong();
  absl::Status PushFloat();
  absl::Status PushFloatLine();
  template <typename Length>
  absl::Status PushText();
  absl::Status PushQuotedLine();
  absl::Status PushUnicodeLine();
  template <typename Length>
  absl::Status PushBytes();
  absl::Status PushTupleToMark();
  template <size_t count>
  absl::Status PushTuple();
  template <Kind kind>
  absl::Status PushListToMark();
  absl::Status AppendTo(NodeId target, size_t first_on_stack, bool to_set);
  absl::Status SetIn(NodeId target, size_t first_on_stack);
  absl::Status Append();
  template <bool to_set>
  absl::Status AppendToMark();
  absl::Status SetItem();
  absl::Status SetItemsToMark();
  absl::Status Remember(uint64_t index);
  absl::Status Recall(uint64_t index);
  absl::StatusOr<uint64_t> ReadIndexLine();
  absl::Status RememberLine();
  absl::Status RecallLine();
  template <typename T>
  absl::Status RememberAt();
  template <typename T>
  absl::Status RecallAt();
  absl::Status RememberNext() { return Remember(memo_.size()); }
  absl::StatusOr<NodeId> AddGlobalLines();
  absl::Status PushGlobalLines();
  absl::Status PushGlobalFromStack();
  absl::Status Reduce();
  absl::Status NewObjectWithKeywords();
  absl::Status Instance();
  absl::Status ObjectToMark();
  absl::Status Build();
  absl::Status PersistentIdLine();
  absl::Status PersistentIdFromStack();

  ByteStream stream_;
  const uint64_t max_nodes_;
  std::unique_ptr<Nodes> nodes_ = std::make_unique<Nodes>();
  std::vector<NodeId> shared_ = std::vector<NodeId>(kSharedNodes, kNoNode);  // by a hash
  std::vector<NodeId> stack_;
  std::vector<size_t> marks_;  // size of the stack when it was set
  absl::flat_hash_map<uint32_t, NodeId> memo_;
  bool stopped_ = false;
};

std::array<Reader::Opcode, 256> Reader::MakeOpcodes() {
  std::array<Opcode, 256> table;
  const auto set = [&](uint8_t code, const char* name, Operation run) {
    table[code] = {name, run};
  };
  set(0x80, "PROTO", &Reader::Proto);
  set(0x95, "FRAME", &Reader::Frame);
  set('.', "STOP", &Reader::Stop);
  set('(', "MARK", &Reader::Mark);
  set('0', "POP", &Reader::Discard);
  set('1', "POP_MARK", &Reader::DiscardToMark);
  set('2', "DUP", &Reader::Duplicate);

  set('N', "NONE", &Reader::PushConstant<Kind::kNone>);
  set(0x88, "NEWTRUE", &Reader::PushConstant<Kind::kBool, 1>);
  set(0x89, "NEWFALSE", &Reader::PushConstant<Kind::kBool, 0>);
  set('J', "BININT", &Reader::PushInt<uint32_t, true>);
  set('K', "BININT1", &Reader::PushInt<uint8_t>);
  set('M', "BININT2", &Reader::PushInt<uint16_t>);
  set('I', "INT", &Reader::PushIntLine);
  set('L', "LONG", &Reader::PushLongLine);
  set(0x8A, "LONG1", &Reader::PushLong<uint8_t>);
  set(0x8B, "LONG4", &Reader::PushLong<uint32_t>);
  set('G', "BINFLOAT", &Reader::PushFloat);
  set('F', "FLOAT", &Reader::PushFloatLine);

  set('S', "STRING", &Reader::PushQuotedLine);
  set('T', "BINSTRING", &Reader::PushText<uint32_t>);
  set('U', "SHORT_BINSTRING", &Reader::PushText<uint8_t>);
  set('V', "UNICODE", &Reader::PushUnicodeLine);
  set('X', "BINUNICODE", &Reader::PushText<uint32_t>);
  set(0x8C, "SHORT_BINUNICODE", &Reader::PushText<uint8_t>);
  set(0x8D, "BINUNICODE8", &Reader::PushText<uint64_t>);
  set('B', "BINBYTES", &Reader::PushBytes<uint32_t>);
  set('C', "SHORT_BINBYTES", &Reader::PushBytes<uint8_t>);
  set(0x8E, "BINBYTES8", &Reader::PushBytes<uint64_t>);
  set(0x96, "BYTEARRAY8", &Reader::PushBytes<uint64_t>);

  set(')', "EMPTY_TUPLE", &Reader::PushTuple<0>);
  set(0x85, "TUPLE1", &Reader::PushTuple<1>);
  set(0x86, "TUPLE2", &Reader::PushTuple<2>);
  set(0x87, "TUPLE3", &Reader::PushTuple<3>);
  set('t', "TUPLE", &Reader::PushTupleToMark);
  set(']', "EMPTY_LIST", &Reader::PushConstant<Kind::kList, kNoList>);
  set('}', "EMPTY_DICT", &Reader::PushConstant<Kind::kDict, kNoList>);
  set(0x8F, "EMPTY_SET", &Reader::PushConstant<Kind::kSet, kNoList>);
  set('l', "LIST", &Reader::PushListToMark<Kind::kList>);
  set('d', "DICT", &Reader::PushListToMark<Kind::kDict>);
  set(0x91, "FROZENSET", &Reader::PushListToMark<Kind::kSet>);
  set('a', "APPEND", &Reader::Append);
  set('e', "APPENDS", &Reader::AppendToMark<false>);
  set(0x90, "ADDITEMS", &Reader::AppendToMark<true>);
  set('s', "SETITEM", &Reader::SetItem);
  set('u', "SETITEMS", &Reader::SetItemsToMark);

  set('p', "PUT", &Reader::RememberLine);
  set('q', "BINPUT", &Reader::RememberAt<uint8_t>);
  set('r', "LONG_BINPUT", &Reader::RememberAt<uint32_t>);
  set(0x94, "MEMOIZE", &Reader::RememberNext);
  set('g', "GET", &Reader::RecallLine);
  set('h', "BINGET", &Reader::RecallAt<uint8_t>);
  set('j', "LONG_BINGET", &Reader::RecallAt<uint32_t>);

  set('c', "GLOBAL", &Reader::PushGlobalLines);
  set(0x93, "STACK_GLOBAL", &Reader::PushGlobalFromStack);
  set('R', "REDUCE", &Reader::Reduce);
  set(0x81, "NEWOBJ", &Reader::Reduce);
  set(0x92, "NEWOBJ_EX", &Reader::NewObjectWithKeywords);
  set('i', "INST", &Reader::Instance);
  set('o', "OBJ", &Reader::ObjectToMark);
  set('b', "BUILD", &Reader::Build);
  set('P', "PERSID", &Reader::PersistentIdLine);
  set('Q', "BINPERSID", &Reader::PersistentIdFromStack);

  // Known, and refused.
  set(0x82, "EXT1", nullptr);
  set(0x83, "EXT2", nullptr);
  set(0x84, "EXT4", nullptr);
  set(0x97, "NEXT_BUFFER", nullptr);
  set(0x98, "READONLY_BUFFER", nullptr);
  return table;
}

absl::StatusOr<Pickle> Reader::Run() {
  static const std::array<Opcode, 256> opcodes = MakeOpcodes();
  while (!stopped_) {
    const uint64_t offset = stream_.position();
    TESSERA_ASSIGN_OR_RETURN(const uint8_t code, stream_.ReadByte());
    const Opcode& opcode = opcodes[code];
    if (opcode.run == nullptr) {
      return absl::DataLossError(absl::StrCat(
          "offset ", offset, ": pickle opcode 0x", absl::Hex(code, absl::kZeroPad2),
          opcode.name == nullptr ? "" : absl::StrCat(" (", opcode.name, ")"), " is not supported"));
    }
    const absl::Status status = (this->*opcode.run)();
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("offset ", offset, ": pickle opcode ",
                                                      opcode.name, ": ", status.message()));
    }
  }
  nodes_->end_offset = stream_.position();
  return Pickle(std::move(nodes_));
}

absl::StatusOr<NodeId> Reader::Add(const Node& node) {
  if (nodes_->nodes.size() >= max_nodes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", max_nodes_, " objects in one pickle"));
  }
  nodes_->nodes.push_back(node);
  return static_cast<NodeId>(nodes_->nodes.size() - 1);
}

absl::Status Reader::Push(const Node& node) {
  TESSERA_ASSIGN_OR_RETURN(const NodeId id, node.kind == Kind::kInt ? AddShared(node) : Add(node));
  stack_.push_back(id);
  return absl::OkStatus();
}

absl::StatusOr<NodeId> Reader::AddText(std::string_view text) {
  const Node node = {.kind = Kind::kText, .b = text.size(), .a = nodes_->text.size()};
  nodes_->text.append(text);
  return Add(node);
}

// Numbers and empty tuples that are equal are one node, where they are not far apart.
absl::StatusOr<NodeId> Reader::AddShared(const Node& node) {
  NodeId& known = shared_[(node.a * 31 + static_cast<uint64_t>(node.kind)) % kSharedNodes];
  if (known < nodes_->nodes.size()) {
    const Node& other = NodeAt(known);
    if (other.kind == node.kind && other.place == node.place && other.a == node.a &&
        other.b == node.b) {
      return known;
    }
  }
  TESSERA_ASSIGN_OR_RETURN(known, Add(node));
  return known;
}

absl::StatusOr<uint32_t> Reader::Extend(uint32_t list, size_t first_on_stack) {
  if (list == kNoList) {
    list = static_cast<uint32_t>(nodes_->lists.size());
    nodes_->lists.emplace_back();
  }
  List& known = nodes_->lists[list];
  std::vector<NodeId>& elements = nodes_->list_elements;
  const uint64_t added = stack_.size() - first_on_stack;
  if (known.size + added > kMaxListElements) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", kMaxListElements, " elements in one list"));
  }
  const bool is_last = known.begin + known.capacity == elements.size();
  const uint64_t needed = known.size + added;
  if (needed > known.capacity && !is_last) {
    // It may grow again: a list that moves gets as much space again as it has elements.
    const auto old = static_cast<ptrdiff_t>(known.begin);
    known.begin = elements.size();
    known.capacity = static_cast<uint32_t>(needed + known.size);
    elements.resize(known.begin + known.capacity);
    std::copy_n(elements.begin() + old, known.size,
                elements.begin() + static_cast<ptrdiff_t>(known.begin));
  } else if (needed > known.capacity) {
    known.capacity = static_cast<uint32_t>(needed);
    elements.resize(known.begin + known.capacity);
  }
  std::copy(stack_.begin() + static_cast<ptrdiff_t>(first_on_stack), stack_.end(),
            elements.begin() + static_cast<ptrdiff_t>(known.begin + known.size));
  known.size = static_cast<uint32_t>(needed);
  return list;
}

absl::StatusOr<NodeId> Reader::AddTuple(size_t first_on_stack) {
  const auto first = stack_.begin() + static_cast<ptrdiff_t>(first_on_stack);
  const Node node = {.kind = Kind::kTuple,
                     .b = static_cast<uint64_t>(stack_.end() - first),
                     .a = nodes_->tuple_elements.size()};
  if (first == stack_.end()) return AddShared({.kind = Kind::kTuple});
  nodes_->tuple_elements.insert(nodes_->tuple_elements.end(), first, stack_.end());
  stack_.erase(first, stack_.end());
  return Add(node);
}

absl::Status Reader::PushObject(NodeId callable, NodeId arguments, NodeId keyword_arguments) {
  const Node node = {.kind = Kind::kObject, .a = nodes_->objects.size()};
  nodes_->objects.push_back(
      {.callable = callable, .arguments = arguments, .keyword_arguments = keyword_arguments});
  return Push(node);
}

absl::StatusOr<NodeId> Reader::Top() {
  if (stack_.size() <= floor()) return Wrong("nothing is on the stack");
  return stack_.back();
}

absl::StatusOr<NodeId> Reader::Pop() {
  TESSERA_ASSIGN_OR_RETURN(const NodeId top, Top());
  stack_.pop_back();
  return top;
}

absl::StatusOr<size_t> Reader::PopMark() {
  if (marks_.empty()) return Wrong("no mark is on the stack");
  const size_t first = marks_.back();
  marks_.pop_back();
  return first;
}

absl::Status Reader::Proto() {
  TESSERA_ASSIGN_OR_RETURN(const uint8_t protocol, stream_.ReadByte());
  if (protocol <= kHighestProtocol) return absl::OkStatus();
  return Wrong(absl::StrCat("protocol ", protocol, ", at most ", kHighestProtocol, " is known"));
}

// Frames tell a reader how much to read at once. The stream has blocks of its own.
absl::Status Reader::Frame() {
  TESSERA_ASSIGN_OR_RETURN(const uint64_t length, ReadNumber<uint64_t>());
  if (length <= stream_.remaining()) return absl::OkStatus();
  return Wrong(absl::StrCat("a frame of ", length, " bytes, ", stream_.remaining(), " are left"));
}

absl::Status Reader::Stop() {
  TESSERA_ASSIGN_OR_RETURN(nodes_->root, Pop());
  stopped_ = true;
  return absl::OkStatus();
}

absl::Status Reader::Mark() {
  marks_.push_back(stack_.size());
  return absl::OkStatus();
}

absl::Status Reader::Discard() {
  if (!marks_.empty() && marks_.back() == stack_.size()) {
    marks_.pop_back();
    return absl::OkStatus();
  }
  return Pop().status();
}

absl::Status Reader::DiscardToMark() {
  TESSERA_ASSIGN_OR_RETURN(const size_t first, PopMark());
  stack_.resize(first);
  return absl::OkStatus();
}

absl::Status Reader::Duplicate() {
  TESSERA_ASSIGN_OR_RETURN(const NodeId top, Top());
  stack_.push_back(top);
  return absl::OkStatus();
}

template <typename T, bool is_signed>
absl::Status Reader::PushInt() {
  TESSERA_ASSIGN_OR_RETURN(const T number, ReadNumber<T>());
  int64_t value = number;
  if (is_signed) value = static_cast<int32_t>(number);
  return Push({.kind = Kind::kInt, .a = static_cast<uint64_t>(value)});
}

absl::Status Reader::PushDecimal(std::string_view digits, uint64_t offset) {
  int64_t value = 0;
  if (absl::SimpleAtoi(View(digits), &value)) {
    return Push({.kind = Kind::kInt, .a = static_cast<uint64_t>(value)});
  }
  uint64_t large = 0;
  if (absl::SimpleAtoi(View(digits), &large)) {
    return Push({.kind = Kind::kInt, .place = Place::kUnsigned, .a = large});
  }
  const size_t sign = digits.starts_with('-') ? 1 : 0;
  if (digits.size() == sign || digits.find_first_not_of("0123456789", sign) != digits.npos) {
    return Wrong("no decimal number");
  }
  return Push({.kind = Kind::kInt, .place = Place::kInFile, .b = digits.size(), .a = offset});
}

// Protocol 0 and 1 write the bools as 00 and 01.
absl::Status Reader::PushIntLine() {
  const uint64_t offset = stream_.position();
  TESSERA_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  if (line == "00" || line == "01") return Push({.kind = Kind::kBool, .a = line == "01"});
  return PushDecimal(line, offset);
}

absl::Status Reader::PushLongLine() {
  const uint64_t offset = stream_.position();
  TESSERA_ASSIGN_OR_RETURN(std::string line, ReadLine());
  if (line.ends_with('L')) line.pop_back();
  return PushDecimal(line, offset);
}

// Two's complement, as short as possible.
template <typename Length>
absl::Status Reader::PushLong() {
  TESSERA_ASSIGN_OR_RETURN(const Length length, ReadNumber<Length>());
  const uint64_t offset = stream_.position();
  if (length > sizeof(uint64_t) + 1) {
    TESSERA_RETURN_IF_ERROR(stream_.Skip(length));
    return Push({.kind = Kind::kInt, .place = Place::kInFile, .b = length, .a = offset});
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string_view bytes, stream_.ReadView(length));
  const bool negative = !bytes.empty() && static_cast<int8_t>(bytes.back()) < 0;
  std::array<char, sizeof(uint64_t) + 1> extended;
  extended.fill(negative ? '\xFF' : '\0');
  std::copy(bytes.begin(), bytes.end(), extended.begin());
  const auto value = LoadLittleEndian<uint64_t>(extended.data());
  const char above = extended.back();
  if (above == (static_cast<int64_t>(value) < 0 ? '\xFF' : '\0')) {
    return Push({.kind = Kind::kInt, .a = value});
  }
  if (above == 0) return Push({.kind = Kind::kInt, .place = Place::kUnsigned, .a = value});
  return Push({.kind = Kind::kInt, .place = Place::kInFile, .b = length, .a = offset});
}

absl::Status Reader::PushFloat() {
  TESSERA_ASSIGN_OR_RETURN(const uint64_t bits, ReadNumber<uint64_t>());
  return Push({.kind = Kind::kFloat, .a = __builtin_bswap64(bits)});  // big-endian in the file
}

absl::Status Reader::PushFloatLine() {
  TESSERA_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  double value = 0;
  if (!absl::SimpleAtod(line, &value)) return Wrong("no number");
  return Push({.kind = Kind::kFloat, .a = std::bit_cast<uint64_t>(value)});
}

template <typename Length>
absl::Status Reader::PushText() {
  TESSERA_ASSIGN_OR_RETURN(const Length length, ReadNumber<Length>());
  if (length > kMaxTextBytes) {
    const uint64_t offset = stream_.position();
    TESSERA_RETURN_IF_ERROR(stream_.Skip(length));
    return Push({.kind = Kind::kText, .place = Place::kInFile, .b = length, .a = offset});
  }
  const Node node = {.kind = Kind::kText, .b = length, .a = nodes_->text.size()};
  TESSERA_RETURN_IF_ERROR(stream_.ReadInto(length, nodes_->text));
  return Push(node);
}

absl::Status Reader::PushQuotedLine() {
  TESSERA_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  const std::optional<std::string> text = DecodeQuoted(line);
  if (!text) return Wrong("no text in quotes");
  TESSERA_ASSIGN_OR_RETURN(const NodeId id, AddText(*text));
  stack_.push_back(id);
  return absl::OkStatus();
}

absl::Status Reader::PushUnicodeLine() {
  TESSERA_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  const std::optional<std::string> text = DecodeRawUnicodeEscape(line);
  if (!text) return Wrong("a malformed escape");
  TESSERA_ASSIGN_OR_RETURN(const NodeId id, AddText(*text));
  stack_.push_back(id);
  return absl::OkStatus();
}

template <typename Length>
absl::Status Reader::PushBytes() {
  TESSERA_ASSIGN_OR_RETURN(const Length length, ReadNumber<Length>());
  const uint64_t offset = stream_.position();
  TESSERA_RETURN_IF_ERROR(stream_.Skip(length));
  return Push({.kind = Kind::kBytes, .place = Place::kInFile, .b = length, .a = offset});
}

absl::Status Reader::PushTupleToMark() {
  TESSERA_ASSIGN_OR_RETURN(const size_t first, PopMark());
  TESSERA_ASSIGN_OR_RETURN(const NodeId tuple, AddTuple(first));
  stack_.push_back(tuple);
  return absl::OkStatus();
}

template <size_t count>
absl::Status Reader::PushTuple() {
  if (stack_.size() - floor() < count) return Wrong("too little is on the stack");
  TESSERA_ASSIGN_OR_RETURN(const NodeId tuple, AddTuple(stack_.size() - count));
  stack_.push_back(tuple);
  return absl::OkStatus();
}

template <Kind kind>
absl::Status Reader::PushListToMark() {
  TESSERA_ASSIGN_OR_RETURN(const size_t first, PopMark());
  TESSERA_ASSIGN_OR_RETURN(const NodeId list, Add({.kind = kind, .a = kNoList}));
  if (kind == Kind::kDict) {
    TESSERA_RETURN_IF_ERROR(SetIn(list, first));
  } else {
    TESSERA_RETURN_IF_ERROR(AppendTo(list, first, kind == Kind::kSet));
  }
  stack_.push_back(list);
  return absl::OkStatus();
}

absl::Status Reader::AppendTo(NodeId target, size_t first_on_stack, bool to_set) {
  const auto first = stack_.begin() + static_cast<ptrdiff_t>(first_on_stack);
  Node& node = NodeAt(target);
  const bool fits = node.kind == Kind::kObject || node.kind == (to_set ? Kind::kSet : Kind::kList);
  if (!fits) return Wrong(absl::StrCat("cannot add to a ", View(KindName(node.kind))));
  if (first != stack_.end()) {
    if (node.kind == Kind::kObject) {
      uint32_t& items = nodes_->objects[node.a].items;
      TESSERA_ASSIGN_OR_RETURN(items, Extend(items, first_on_stack));
    } else {
      TESSERA_ASSIGN_OR_RETURN(node.a, Extend(static_cast<uint32_t>(node.a), first_on_stack));
    }
  }
  stack_.erase(first, stack_.end());
  return absl::OkStatus();
}

absl::Status Reader::SetIn(NodeId target, size_t first_on_stack) {
  const auto first = stack_.begin() + static_cast<ptrdiff_t>(first_on_stack);
  Node& node = NodeAt(target);
  if (node.kind != Kind::kDict && node.kind != Kind::kObject) {
    return Wrong(absl::StrCat("cannot set an item of a ", View(KindName(node.kind))));
  }
  if ((stack_.end() - first) % 2 != 0) return Wrong("a key without a value");
  if (first != stack_.end()) {
    if (node.kind == Kind::kObject) {
      uint32_t& entries = nodes_->objects[node.a].entries;
      TESSERA_ASSIGN_OR_RETURN(entries, Extend(entries, first_on_stack));
    } else {
      TESSERA_ASSIGN_OR_RETURN(node.a, Extend(static_cast<uint32_t>(node.a), first_on_stack));
    }
  }
  stack_.erase(first, stack_.end());
  return absl::OkStatus();
}

absl::Status Reader::Append() {
  if (stack_.size() - floor() < 2) return Wrong("too little is on the stack");
  return AppendTo(stack_[stack_.size() - 2], stack_.size() - 1, /*to_set=*/false);
}

template <bool to_set>
absl::Status Reader::AppendToMark() {
  TESSERA_ASSIGN_OR_RETURN(const size_t first, PopMark());
  if (first <= floor()) return Wrong("nothing is on the stack");
  return AppendTo(stack_[first - 1], first, to_set);
}

absl::Status Reader::SetItem() {
  if (stack_.size() - floor() < 3) return Wrong("too little is on the stack");
  return SetIn(stack_[stack_.size() - 3], stack_.size() - 2);
}

absl::Status Reader::SetItemsToMark() {
  TESSERA_ASSIGN_OR_RETURN(const size_t first, PopMark());
  if (first <= floor()) return Wrong("nothing is on the stack");
  return SetIn(stack_[first - 1], first);
}

absl::Status Reader::Remember(uint64_t index) {
  TESSERA_ASSIGN_OR_RETURN(const NodeId top, Top());
  memo_[static_cast<uint32_t>(index)] = top;
  return absl::OkStatus();
}

absl::Status Reader::Recall(uint64_t index) {
  const auto found = memo_.find(static_cast<uint32_t>(index));
  if (found == memo_.end()) return Wrong(absl::StrCat("no object has the number ", index));
  stack_.push_back(found->second);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Reader::ReadIndexLine() {
  TESSERA_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  uint32_t index = 0;
  if (!absl::SimpleAtoi(line, &index)) return Wrong("no number of an object");
  return index;
}

absl::Status Reader::RememberLine() {
  TESSERA_ASSIGN_OR_RETURN(const uint64_t index, ReadIndexLine());
  return Remember(index);
}

absl::Status Reader::RecallLine() {
  TESSERA_ASSIGN_OR_RETURN(const uint64_t index, ReadIndexLine());
  return Recall(index);
}

template <typename T>
absl::Status Reader::RememberAt() {
  TESSERA_ASSIGN_OR_RETURN(const T index, ReadNumber<T>());
  return Remember(index);
}

template <typename T>
absl::Status Reader::RecallAt() {
  TESSERA_ASSIGN_OR_RETURN(const T index, ReadNumber<T>());
  return Recall(index);
}

absl::StatusOr<NodeId> Reader::AddGlobalLines() {
  TESSERA_ASSIGN_OR_RETURN(const std::string module, ReadLine());
  TESSERA_ASSIGN_OR_RETURN(const std::string name, ReadLine());
  TESSERA_ASSIGN_OR_RETURN(const NodeId module_id, AddText(module));
  TESSERA_ASSIGN_OR_RETURN(const NodeId name_id, AddText(name));
  return Add({.kind = Kind::kGlobal, .b = name_id, .a = module_id});
}

absl::Status Reader::PushGlobalLines() {
  TESSERA_ASSIGN_OR_RETURN(const NodeId global, AddGlobalLines());
  stack_.push_back(global);
  return absl::OkStatus();
}

absl::Status Reader::PushGlobalFromStack() {
  TESSERA_ASSIGN_OR_RETURN(const NodeId name, Pop());
  TESSERA_ASSIGN_OR_RETURN(const NodeId module, Pop());
  if (NodeAt(name).kind != Kind::kText || NodeAt(module).kind != Kind::kText) {
    return Wrong("module and name are not texts");
  }
  return Push({.kind = Kind::kGlobal, .b = name, .a = module});
}

absl::Status Reader::Reduce() {
  TESSERA_ASSIGN_OR_RETURN(const NodeId arguments, Pop());
  TESSERA_ASSIGN_OR_RETURN(const NodeId callable, Pop());
  return PushObject(callable, arguments);
}

absl::Status Reader::NewObjectWithKeywords() {
  TESSERA_ASSIGN_OR_RETURN(const NodeId keyword_arguments, Pop());
  TESSERA_ASSIGN_OR_RETURN(const NodeId arguments, Pop());
  TESSERA_ASSIGN_OR_RETURN(const NodeId callable, Pop());
  return PushObject(callable, arguments, keyword_arguments);
}

absl::Status Reader::Instance() {
  TESSERA_ASSIGN_OR_RETURN(const size_t first, PopMark());
  TESSERA_ASSIGN_OR_RETURN(const NodeId arguments, AddTuple(first));
  TESSERA_ASSIGN_OR_RETURN(const NodeId callable, AddGlobalLines());
  return PushObject(callable, arguments);
}

absl::Status Reader::ObjectToMark() {
  TESSERA_ASSIGN_OR_RETURN(const size_t first, PopMark());
  if (first == stack_.size()) return Wrong("nothing is on the stack");
  const NodeId callable = stack_[first];
  TESSERA_ASSIGN_OR_RETURN(const NodeId arguments, AddTuple(first + 1));
  stack_.pop_back();
  return PushObject(callable, arguments);
}

absl::Status Reader::Build() {
  TESSERA_ASSIGN_OR_RETURN(const NodeId state, Pop());
  TESSERA_ASSIGN_OR_RETURN(const NodeId target, Top());
  const Node& node = NodeAt(target);
  if (node.kind != Kind::kObject) {
    return Wrong(absl::StrCat("a ", View(KindName(node.kind)), " has no state to set"));
  }
  Object& object = nodes_->objects[node.a];
  if (object.state != kNoNode) return Wrong("the state of an object is set twice");
  object.state = state;
  return absl::OkStatus();
}

absl::Status Reader::PersistentIdLine() {
  TESSERA_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  TESSERA_ASSIGN_OR_RETURN(const NodeId id, AddText(line));
  return Push({.kind = Kind::kPersistentId, .a = id});
}

absl::Status Reader::PersistentIdFromStack() {
  TESSERA_ASSIGN_OR_RETURN(const NodeId id, Pop());
  return Push({.kind = Kind::kPersistentId, .a = id});
}

}  // namespace

absl::StatusOr<Pickle> ReadPickle(const ReadableFile& file, Extent within,
                                  const ReadOptions& options) {
  if (within.offset > file.size_bytes() || within.length > file.size_bytes() - within.offset) {
    return absl::DataLossError(absl::StrCat("a pickle of ", within.length, " bytes at offset ",
                                            within.offset, " in a file of ", file.size_bytes(),
                                            " bytes"));
  }
  if (within.offset + within.length > kMaxExtent) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a pickle in a file of ", file.size_bytes(), " bytes"));
  }
  return Reader(file, within, options).Run();
}

}  // namespace tessera::ckpt::pickle
