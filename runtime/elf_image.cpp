// SPDX-License-Identifier: Apache-2.0
// Every offset and size comes from the file, so each is checked before it is used.
#include "runtime/elf_image.hpp"

#include "runtime/refused.hpp"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>

namespace rlk::runtime {
namespace {

// A kernel has some kilobytes; this keeps sums of checked sizes small.
constexpr std::uint64_t k_largest = std::uint64_t{64} << 20;

[[noreturn]] void refuse(const char* what) { throw LoadError("kernel object: {}", what); }

// The bytes of the file, read at any alignment.
class File {
 public:
  explicit File(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> at(std::uint64_t offset, std::uint64_t size) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset) refuse("ends too early");
    return bytes_.subspan(offset, size);
  }

  template <class T>
  T read(std::uint64_t offset) const {
    T value;
    std::memcpy(&value, at(offset, sizeof(T)).data(), sizeof(T));
    return value;
  }

  template <class T>
  std::vector<T> read_table(const Elf64_Shdr& section) const {
    const auto bytes = at(section.sh_offset, section.sh_size);
    if (section.sh_size % sizeof(T) != 0) refuse("a table of broken size");
    std::vector<T> table(bytes.size() / sizeof(T));
    if (!table.empty()) std::memcpy(table.data(), bytes.data(), bytes.size());
    return table;
  }

  std::string_view name(const Elf64_Shdr& strings, std::uint64_t offset) const {
    const auto bytes = at(strings.sh_offset, strings.sh_size);
    if (offset >= bytes.size()) refuse("a name outside of its table");
    const auto* text = reinterpret_cast<const char*>(bytes.data()) + offset;
    const std::size_t room = bytes.size() - offset;
    const std::size_t length = strnlen(text, room);
    if (length == room) refuse("a name without an end");
    return {text, length};
  }

 private:
  std::span<const std::byte> bytes_;
};

std::vector<Elf64_Shdr> read_sections(const File& file) {
  const auto header = file.read<Elf64_Ehdr>(0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_type != ET_REL) {
    refuse("not a 64-bit relocatable ELF file");
  }
  if (header.e_machine != EM_X86_64) refuse("made for another machine");
  if (header.e_shentsize != sizeof(Elf64_Shdr)) refuse("section headers of unknown size");
  Elf64_Shdr table{};
  table.sh_offset = header.e_shoff;
  table.sh_size = std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr);
  return file.read_table<Elf64_Shdr>(table);
}

// Sections that are in memory when the kernel runs. Unwind tables and notes are left out: nobody
// reads them.
bool is_loaded(const Elf64_Shdr& section) {
  return (section.sh_flags & SHF_ALLOC) != 0 && section.sh_type == SHT_PROGBITS &&
         section.sh_size > 0;
}

// The place of each section: code first, then read-only data on pages of its own.
struct Layout {
  std::vector<std::optional<std::uint64_t>> offsets;  // by section index
  std::uint64_t code_bytes = 0;                       // whole pages
  std::uint64_t total_bytes = 0;                      // whole pages
};

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

Layout lay_out(const File& file, const std::vector<Elf64_Shdr>& sections) {
  const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  Layout layout;
  layout.offsets.resize(sections.size());
  for (const bool code : {true, false}) {
    for (std::size_t i = 0; i < sections.size(); ++i) {
      const Elf64_Shdr& section = sections[i];
      // Compilers leave empty .bss and .data sections behind.
      if (section.sh_type == SHT_NOBITS && section.sh_size > 0) refuse("writable data");
      if (!is_loaded(section) || ((section.sh_flags & SHF_EXECINSTR) != 0) != code) continue;
      if ((section.sh_flags & (SHF_WRITE | SHF_TLS | SHF_COMPRESSED)) != 0) refuse("writable data");
      const std::uint64_t align = section.sh_addralign == 0 ? 1 : section.sh_addralign;
      if (!std::has_single_bit(align) || align > page_bytes) refuse("an impossible alignment");
      file.at(section.sh_offset, section.sh_size);
      layout.offsets[i] = round_up(layout.total_bytes, align);
      layout.total_bytes = *layout.offsets[i] + section.sh_size;
      if (layout.total_bytes > k_largest) refuse("too large");
    }
    layout.total_bytes = round_up(layout.total_bytes, page_bytes);
    if (code) layout.code_bytes = layout.total_bytes;
  }
  if (layout.code_bytes == 0) refuse("holds no code");
  return layout;
}

struct Symbols {
  std::vector<Elf64_Sym> table;
  const Elf64_Shdr* strings = nullptr;
};

Symbols read_symbols(const File& file, const std::vector<Elf64_Shdr>& sections) {
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB) continue;
    if (section.sh_link >= sections.size()) refuse("symbols without names");
    return {file.read_table<Elf64_Sym>(section), &sections[section.sh_link]};
  }
  refuse("holds no symbols");
}

// Offset of a symbol within the image. One past the end of a section is allowed.
std::uint64_t offset_of(const Elf64_Sym& symbol, const std::vector<Elf64_Shdr>& sections,
                        const Layout& layout) {
  if (symbol.st_shndx == SHN_UNDEF) refuse("an undefined symbol");
  if (symbol.st_shndx >= sections.size() || !layout.offsets[symbol.st_shndx]) {
    refuse("a symbol outside of code and data");
  }
  if (symbol.st_value > sections[symbol.st_shndx].sh_size) refuse("a symbol past its section");
  return *layout.offsets[symbol.st_shndx] + symbol.st_value;
}

template <class T>
void store(std::byte* place, std::uint64_t room, std::int64_t value) {
  if (sizeof(T) > room) refuse("a relocation past its section");
  if (value < static_cast<std::int64_t>(std::numeric_limits<T>::min()) ||
      value > static_cast<std::int64_t>(std::numeric_limits<T>::max())) {
    refuse("a relocation out of reach");
  }
  const T narrow = static_cast<T>(value);
  std::memcpy(place, &narrow, sizeof(T));
}

// One relocation: S is the symbol's address, A the addend, P the place.
void relocate(const Elf64_Rela& relocation, std::byte* place, std::uint64_t room,
              std::uint64_t symbol_address) {
  // Unsigned: a damaged addend may wrap.
  const std::uint64_t target = symbol_address + static_cast<std::uint64_t>(relocation.r_addend);
  const std::uint64_t here = reinterpret_cast<std::uintptr_t>(place);
  switch (ELF64_R_TYPE(relocation.r_info)) {
    case R_X86_64_PC32:
    case R_X86_64_PLT32:  // to a symbol of our own: no table is needed
      return store<std::int32_t>(place, room, static_cast<std::int64_t>(target - here));
    case R_X86_64_PC64:
      return store<std::int64_t>(place, room, static_cast<std::int64_t>(target - here));
    case R_X86_64_64:
      return store<std::int64_t>(place, room, static_cast<std::int64_t>(target));
    default:
      break;
  }
  throw LoadError("kernel object: relocation type {} is not known",
                  ELF64_R_TYPE(relocation.r_info));
}

void relocate_all(const File& file, const std::vector<Elf64_Shdr>& sections, const Symbols& symbols,
                  const Layout& layout, std::byte* base) {
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_RELA && section.sh_type != SHT_REL) continue;
    const std::size_t patched = section.sh_info;
    if (patched >= sections.size()) refuse("relocations of no section");
    if (!layout.offsets[patched]) continue;
    if (section.sh_type == SHT_REL) refuse("relocations without addends");
    for (const auto& relocation : file.read_table<Elf64_Rela>(section)) {
      const std::uint64_t index = ELF64_R_SYM(relocation.r_info);
      if (index >= symbols.table.size()) refuse("a relocation to no symbol");
      const std::uint64_t size = sections[patched].sh_size;
      if (relocation.r_offset >= size) refuse("a relocation past its section");
      const std::uint64_t target = offset_of(symbols.table[index], sections, layout);
      relocate(relocation, base + *layout.offsets[patched] + relocation.r_offset,
               size - relocation.r_offset, reinterpret_cast<std::uintptr_t>(base) + target);
    }
  }
}

// Puts a mapping of a file of the same bytes in their place: where pages that were written may not
// become executable (PR_SET_MDWE, SELinux's execmem), those of a file still may.
bool map_from_file(std::byte* begin, std::uint64_t bytes) {
  constexpr unsigned k_no_exec_seal = 8;  // MFD_NOEXEC_SEAL, which vm.memfd_noexec may ask for
  int file = ::memfd_create("rlk", MFD_CLOEXEC | k_no_exec_seal);
  if (file < 0 && errno == EINVAL) file = ::memfd_create("rlk", MFD_CLOEXEC);  // before Linux 6.3
  if (file < 0) return false;
  const ssize_t num_written = ::write(file, begin, bytes);
  if (num_written >= 0 && static_cast<std::uint64_t>(num_written) != bytes) errno = EFBIG;
  const bool is_mapped =
      num_written == static_cast<ssize_t>(bytes) &&
      ::mmap(begin, bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, 0) != MAP_FAILED;
  const int error = errno;
  ::close(file);
  errno = error;
  return is_mapped;
}

void make_executable(std::byte* begin, std::uint64_t bytes) {
  if (::mprotect(begin, bytes, PROT_READ | PROT_EXEC) == 0) return;
  const int error = errno;
  if (map_from_file(begin, bytes)) return;
  throw Refused(
      "kernel object: expected memory that may be executed, got: mprotect: {}, memfd: {}; a rule "
      "of "
      "this process (seccomp, SELinux, PR_SET_MDWE) forbids it, and must allow one of the two",
      std::strerror(error), std::strerror(errno));
}

}  // namespace

ElfImage ElfImage::load(std::span<const std::byte> object) {
  const File file(object);
  const auto sections = read_sections(file);
  const Layout layout = lay_out(file, sections);
  const Symbols symbols = read_symbols(file, sections);

  void* memory =
      mmap(nullptr, layout.total_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Refused("kernel object: mmap: {}", std::strerror(errno));
  ElfImage image(memory, layout.total_bytes);
  auto* base = static_cast<std::byte*>(memory);

  for (std::size_t i = 0; i < sections.size(); ++i) {
    if (!layout.offsets[i]) continue;
    const auto bytes = file.at(sections[i].sh_offset, sections[i].sh_size);
    std::memcpy(base + *layout.offsets[i], bytes.data(), bytes.size());
  }
  relocate_all(file, sections, symbols, layout, base);
  for (const Elf64_Sym& symbol : symbols.table) {
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || ELF64_ST_BIND(symbol.st_info) == STB_LOCAL) {
      continue;
    }
    const std::uint64_t offset = offset_of(symbol, sections, layout);
    if (offset >= layout.code_bytes) refuse("a function outside of the code");
    image.symbols_.push_back(
        {std::string(file.name(*symbols.strings, symbol.st_name)), base + offset});
  }

  make_executable(base, layout.code_bytes);
  const std::uint64_t data_bytes = layout.total_bytes - layout.code_bytes;
  if (data_bytes != 0 && ::mprotect(base + layout.code_bytes, data_bytes, PROT_READ) != 0) {
    throw Refused("kernel object: mprotect: {}", std::strerror(errno));
  }
  __builtin___clear_cache(reinterpret_cast<char*>(base),
                          reinterpret_cast<char*>(base + layout.code_bytes));
  return image;
}

ElfImage::~ElfImage() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

void* ElfImage::symbol(std::string_view name) const {
  for (const Symbol& symbol : symbols_) {
    if (symbol.name == name) return symbol.address;
  }
  throw LoadError("kernel object: expected function {}, found none", name);
}

}  // namespace rlk::runtime
