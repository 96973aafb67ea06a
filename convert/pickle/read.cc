#include "convert/pickle/read.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/status_macros.h"
#include "convert/pickle/nodes.h"
#include "convert/pickle/stack_machine.h"

namespace tessera::ckpt::pickle {
namespace {

constexpr uint8_t kHighestProtocol = 5;
// Opcodes with an argument in ASCII, which protocols 0 and 1 alone write: PERSID, INT, LONG, FLOAT,
// STRING, UNICODE, PUT, GET and INST.
constexpr std::string_view kTextOpcodes = "PILFSVpgi";

constexpr uint64_t kBlockBytes = 64 * 1024;

// Reads part of a file from its beginning to its end, in blocks. What is skipped is not read.
// Errors: DataLoss where the part ends early; the file's own.
class ByteStream {
 public:
  // Precondition: the part lies within the file, which outlives the stream.
  ByteStream(const ReadableFile& file, Extent part)
      : file_(file), position_(part.offset), end_(part.offset + part.length) {}

  // Returns the file offset of the next byte.
  uint64_t position() const { return position_; }
  uint64_t remaining() const { return end_ - position_; }

  absl::StatusOr<uint8_t> ReadByte() {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view byte, ReadView(1));
    return static_cast<uint8_t>(byte[0]);
  }

  // Reads the next bytes, valid until the next call, which are buffered at once: for short fields.
  absl::StatusOr<std::string_view> ReadView(size_t length) {
    TESSERA_RETURN_IF_ERROR(CheckRemaining(length));
    TESSERA_RETURN_IF_ERROR(Fill(length));
    const std::string_view view(buffer_.data() + next_, length);
    next_ += length;
    position_ += length;
    return view;
  }

  // Appends the next bytes to `to`; nothing is allocated unless they are there.
  absl::Status ReadInto(uint64_t length, std::string& to) {
    TESSERA_RETURN_IF_ERROR(CheckRemaining(length));
    while (length > 0) {
      TESSERA_RETURN_IF_ERROR(Fill(1));
      const size_t now = std::min<uint64_t>(length, buffered());
      to.append(buffer_.data() + next_, now);
      next_ += now;
      position_ += now;
      length -= now;
    }
    return absl::OkStatus();
  }

  // Reads the bytes before the next '\n', which is skipped.
  absl::StatusOr<std::string> ReadLine(size_t max_bytes) {
    std::string line;
    while (true) {
      TESSERA_ASSIGN_OR_RETURN(const uint8_t byte, ReadByte());
      if (byte == '\n') return line;
      if (line.size() == max_bytes) {
        return absl::DataLossError(
            absl::StrCat("offset ", position_, ": a line of more than ", max_bytes, " bytes"));
      }
      line.push_back(static_cast<char>(byte));
    }
  }

  absl::Status Skip(uint64_t length) {
    TESSERA_RETURN_IF_ERROR(CheckRemaining(length));
    position_ += length;
    if (length <= buffered()) {
      next_ += length;
    } else {
      buffer_.clear();
      next_ = 0;
    }
    return absl::OkStatus();
  }

 private:
  size_t buffered() const { return buffer_.size() - next_; }

  absl::Status Ended(uint64_t needed) const {
    return absl::DataLossError(absl::StrCat("offset ", position_, ": expected ", needed,
                                            " more bytes, found ", remaining()));
  }

  absl::Status CheckRemaining(uint64_t needed) const {
    return needed <= remaining() ? absl::OkStatus() : Ended(needed);
  }
  // Precondition: at least `length` bytes remain.
  absl::Status Fill(size_t length) {
    if (buffered() >= length) return absl::OkStatus();
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(next_));
    next_ = 0;
    const size_t have = buffer_.size();
    const uint64_t unread = remaining() - have;
    const uint64_t more = std::min(unread, std::max<uint64_t>(kBlockBytes, length) - have);
    buffer_.resize(have + more);
    const std::span<char> out = std::span(buffer_).subspan(have);
    const absl::Status status = file_.ReadAt(position_ + have, std::as_writable_bytes(out));
    if (!status.ok()) buffer_.resize(have);
    return status;
  }

  const ReadableFile& file_;
  uint64_t position_;
  const uint64_t end_;
  std::vector<char> buffer_;
  size_t next_ = 0;  // into buffer_
};

// Runs a pickle's opcodes on the stack machine.
class Reader : private StackMachine {
 public:
  Reader(const ReadableFile& file, Extent within, const ReadOptions& options)
      : StackMachine(options.max_nodes), stream_(file, within) {}

  absl::StatusOr<Pickle> Run() {
    static const std::array<Opcode, 256> opcodes = MakeOpcodes();
    nodes().begin_offset = stream_.position();
    while (!stopped_) {
      const uint64_t offset = stream_.position();
      TESSERA_ASSIGN_OR_RETURN(const uint8_t code, stream_.ReadByte());
      const Opcode& opcode = opcodes[code];
      if (kTextOpcodes.find(static_cast<char>(code)) != kTextOpcodes.npos) {
        return absl::DataLossError(absl::StrCat(
            "offset ", offset, ": pickle opcode '", std::string(1, static_cast<char>(code)),
            "' is one of the text forms of pickle protocols 0 and 1, which are not supported: "
            "write the file with protocol 2 or later"));
      }
      if (opcode.run == nullptr) {
        return absl::DataLossError(
            absl::StrCat("offset ", offset, ": pickle opcode 0x", absl::Hex(code, absl::kZeroPad2),
                         opcode.name == nullptr ? "" : absl::StrCat(" (", opcode.name, ")"),
                         " is not supported"));
      }
      const absl::Status status = (this->*opcode.run)();
      if (!status.ok()) {
        return absl::Status(status.code(), absl::StrCat("offset ", offset, ": pickle opcode ",
                                                        opcode.name, ": ", status.message()));
      }
    }
    nodes().end_offset = stream_.position();
    return Pickle(TakeNodes());
  }

 private:
  using Operation = absl::Status (Reader::*)();
  struct Opcode {
    const char* name = nullptr;
    Operation run = nullptr;
  };

  static std::array<Opcode, 256> MakeOpcodes() {
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
    set(0x8A, "LONG1", &Reader::PushLong<uint8_t>);
    set(0x8B, "LONG4", &Reader::PushLong<uint32_t>);
    set('G', "BINFLOAT", &Reader::PushFloat);

    set('T', "BINSTRING", &Reader::PushText<uint32_t>);
    set('U', "SHORT_BINSTRING", &Reader::PushText<uint8_t>);
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
    set('e', "APPENDS", &Reader::AppendToMark<Kind::kList>);
    set(0x90, "ADDITEMS", &Reader::AppendToMark<Kind::kSet>);
    set('s', "SETITEM", &Reader::SetItem);
    set('u', "SETITEMS", &Reader::SetItemsToMark);

    set('q', "BINPUT", &Reader::RememberAt<uint8_t>);
    set('r', "LONG_BINPUT", &Reader::RememberAt<uint32_t>);
    set(0x94, "MEMOIZE", &Reader::RememberNext);
    set('h', "BINGET", &Reader::RecallAt<uint8_t>);
    set('j', "LONG_BINGET", &Reader::RecallAt<uint32_t>);

    set('c', "GLOBAL", &Reader::PushGlobal);
    set(0x93, "STACK_GLOBAL", &Reader::PushGlobalFromStack);
    set('R', "REDUCE", &Reader::Reduce);
    set(0x81, "NEWOBJ", &Reader::Reduce);
    set(0x92, "NEWOBJ_EX", &Reader::NewObjectWithKeywords);
    set('o', "OBJ", &Reader::ObjectToMark);
    set('b', "BUILD", &Reader::Build);
    set('Q', "BINPERSID", &Reader::PersistentIdFromStack);

    // Known, and refused.
    set(0x82, "EXT1", nullptr);
    set(0x83, "EXT2", nullptr);
    set(0x84, "EXT4", nullptr);
    set(0x97, "NEXT_BUFFER", nullptr);
    set(0x98, "READONLY_BUFFER", nullptr);
    return table;
  }

  // Returns the next sizeof(T) bytes as a little-endian number.
  template <typename T>
  absl::StatusOr<T> ReadNumber() {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view bytes, stream_.ReadView(sizeof(T)));
    return LoadLittleEndian<T>(bytes.data());
  }

  // Handle opcodes with arguments in the pickle, in the order of the table.
  absl::Status Proto() {
    TESSERA_ASSIGN_OR_RETURN(const uint8_t protocol, stream_.ReadByte());
    if (protocol <= kHighestProtocol) return absl::OkStatus();
    return Wrong(absl::StrCat("protocol ", protocol, ", at most ", kHighestProtocol, " is known"));
  }

  // Frames tell a reader how much to read at once. The stream has blocks of its own.
  absl::Status Frame() {
    TESSERA_ASSIGN_OR_RETURN(const uint64_t length, ReadNumber<uint64_t>());
    if (length <= stream_.remaining()) return absl::OkStatus();
    return Wrong(absl::StrCat("a frame of ", length, " bytes, ", stream_.remaining(), " are left"));
  }

  absl::Status Stop() {
    TESSERA_ASSIGN_OR_RETURN(nodes().root, Pop());
    stopped_ = true;
    return absl::OkStatus();
  }

  template <typename T, bool is_signed = false>
  absl::Status PushInt() {
    TESSERA_ASSIGN_OR_RETURN(const T number, ReadNumber<T>());
    int64_t value = number;
    if (is_signed) value = static_cast<int32_t>(number);
    return Push({.kind = Kind::kInt, .a = static_cast<uint64_t>(value)});
  }

  // Pushes a number in two's complement that is as short as possible.
  template <typename Length>
  absl::Status PushLong() {
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

  absl::Status PushFloat() {
    TESSERA_ASSIGN_OR_RETURN(const uint64_t bits, ReadNumber<uint64_t>());
    return Push({.kind = Kind::kFloat, .a = __builtin_bswap64(bits)});  // big-endian in the file
  }

  template <typename Length>
  absl::Status PushText() {
    TESSERA_ASSIGN_OR_RETURN(const Length length, ReadNumber<Length>());
    if (length > kMaxTextBytes) {
      const uint64_t offset = stream_.position();
      TESSERA_RETURN_IF_ERROR(stream_.Skip(length));
      return Push({.kind = Kind::kText, .place = Place::kInFile, .b = length, .a = offset});
    }
    const Node node = {.kind = Kind::kText, .b = length, .a = nodes().text.size()};
    TESSERA_RETURN_IF_ERROR(stream_.ReadInto(length, nodes().text));
    return Push(node);
  }

  template <typename Length>
  absl::Status PushBytes() {
    TESSERA_ASSIGN_OR_RETURN(const Length length, ReadNumber<Length>());
    const uint64_t offset = stream_.position();
    TESSERA_RETURN_IF_ERROR(stream_.Skip(length));
    return Push({.kind = Kind::kBytes, .place = Place::kInFile, .b = length, .a = offset});
  }

  template <typename T>
  absl::Status RememberAt() {
    TESSERA_ASSIGN_OR_RETURN(const T index, ReadNumber<T>());
    return Remember(index);
  }

  template <typename T>
  absl::Status RecallAt() {
    TESSERA_ASSIGN_OR_RETURN(const T index, ReadNumber<T>());
    return Recall(index);
  }

  absl::Status PushGlobal() {
    TESSERA_ASSIGN_OR_RETURN(const std::string module, stream_.ReadLine(kMaxTextBytes));
    TESSERA_ASSIGN_OR_RETURN(const std::string name, stream_.ReadLine(kMaxTextBytes));
    TESSERA_ASSIGN_OR_RETURN(const NodeId module_id, AddText(module));
    TESSERA_ASSIGN_OR_RETURN(const NodeId name_id, AddText(name));
    return Push({.kind = Kind::kGlobal, .b = name_id, .a = module_id});
  }

  ByteStream stream_;
  bool stopped_ = false;
};

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
