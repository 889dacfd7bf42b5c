#include "base/csv.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace meshwright {
namespace {

constexpr std::size_t kMaxText = std::size_t{64} << 20;
constexpr std::size_t kMaxColumns = 256;
constexpr std::size_t kMaxRows = 1000000;

class Reader {
 public:
  Reader(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  bool at_end() const { return position_ == text_.size(); }
  int line() const { return line_; }

  // The cells up to the end of the line; quoted cells may go over several.
  std::vector<std::string> record() {
    std::vector<std::string> cells;
    for (;;) {
      cells.push_back(cell());
      if (cells.size() > kMaxColumns) fail(fmt::format("more than {} columns", kMaxColumns), line_);
      if (at_end()) return cells;
      const char next = text_[position_++];
      if (next == ',') continue;
      if (next == '\r' && !at_end() && text_[position_] == '\n') ++position_;
      ++line_;
      return cells;
    }
  }

  [[noreturn]] void fail(std::string message, int line) const {
    throw Error(std::move(message), fmt::format("{}:{}", source_, line));
  }

 private:
  std::string cell() {
    if (at_end() || text_[position_] != '"') {
      const std::size_t end = std::min(text_.find_first_of(",\r\n", position_), text_.size());
      std::string plain(text_.substr(position_, end - position_));
      position_ = end;
      return plain;
    }
    const int opened = line_;
    std::string quoted;
    for (++position_; !at_end(); ++position_) {
      const char c = text_[position_];
      if (c == '"') {
        if (position_ + 1 == text_.size() || text_[position_ + 1] != '"') {
          ++position_;
          if (!at_end() && std::string_view(",\r\n").find(text_[position_]) == std::string::npos) {
            fail("a comma or the end of the line must follow a closing quote", line_);
          }
          return quoted;
        }
        ++position_;
      } else if (c == '\n') {
        ++line_;
      }
      quoted += c;
    }
    fail("a quoted cell is never closed", opened);
  }

  std::string_view text_;
  std::string source_;
  std::size_t position_ = 0;
  int line_ = 1;
};

}  // namespace

int CsvTable::column(std::string_view name) const {
  const auto it = std::find(columns.begin(), columns.end(), name);
  return it == columns.end() ? -1 : static_cast<int>(it - columns.begin());
}

CsvTable parse_csv(std::string_view text, std::string_view source) {
  if (text.size() > kMaxText) throw Error("table is larger than 64 MiB", std::string(source));
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  Reader reader(text, source);
  CsvTable table;
  table.source = source;
  const auto blank = [](const std::vector<std::string>& cells) {
    return cells.size() == 1 && cells[0].empty();
  };
  while (!reader.at_end() && table.columns.empty()) {
    const int line = reader.line();
    table.columns = reader.record();
    if (blank(table.columns)) table.columns.clear();
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
      if (table.column(table.columns[i]) != static_cast<int>(i)) {
        reader.fail(fmt::format("column '{}' appears twice", table.columns[i]), line);
      }
    }
  }
  if (table.columns.empty()) throw Error("has no header line", std::string(source));
  while (!reader.at_end()) {
    const int line = reader.line();
    std::vector<std::string> cells = reader.record();
    if (blank(cells) && table.columns.size() > 1) continue;
    if (cells.size() != table.columns.size()) {
      reader.fail(fmt::format("{} cells under {} columns", cells.size(), table.columns.size()),
                  line);
    }
    if (table.rows.size() == kMaxRows)
      reader.fail(fmt::format("more than {} rows", kMaxRows), line);
    table.rows.push_back({line, std::move(cells)});
  }
  return table;
}

}  // namespace meshwright
