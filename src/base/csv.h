#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace meshwright {

/// A table with a header line, as RFC 4180 writes it: cells may be quoted, "" inside quotes is a
/// quote, and quoted cells may hold commas and line breaks.
struct CsvTable {
  struct Row {
    int line = 0;  ///< Where it starts, 1-based.
    std::vector<std::string> cells;
  };
  std::string source;
  std::vector<std::string> columns;
  std::vector<Row> rows;  ///< Every row has as many cells as there are columns.

  /// Index of a column, or -1.
  int column(std::string_view name) const;
};

/// Parses at most 64 MiB, 256 columns and a million rows. Blank lines are left out. Throws Error
/// with `source:line`.
CsvTable parse_csv(std::string_view text, std::string_view source);

}  // namespace meshwright
