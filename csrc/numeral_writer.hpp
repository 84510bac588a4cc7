// Writes numbers as characters or as token ids: the same walk over digits, with another unit.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "scaled_numbers.hpp"

namespace lineup {

// Units written one after the other; what it grows by is not filled first.
template <class Unit>
class Units {
  public:
    // Where the next units go, with room for `more` of them.
    Unit* room(std::size_t more) {
        if (size_ + more > capacity_) {
            capacity_ = std::max(2 * capacity_, size_ + more);
            auto grown = std::make_unique_for_overwrite<Unit[]>(capacity_);
            std::copy(data_.get(), data_.get() + size_, grown.get());
            data_ = std::move(grown);
        }
        return data_.get() + size_;
    }
    // Says where those written into the room end.
    void end_at(const Unit* end) { size_ = static_cast<std::size_t>(end - data_.get()); }

    void append(std::span<const Unit> units) {
        end_at(std::copy(units.begin(), units.end(), room(units.size())));
    }

    void clear() { size_ = 0; }
    std::size_t size() const { return size_; }
    std::span<const Unit> view() const { return {data_.get(), size_}; }

  private:
    std::unique_ptr<Unit[]> data_;
    std::size_t size_ = 0;
    std::size_t capacity_ = 0;
};

// What stands between digits. All views.
template <class Unit>
struct Openings {
    std::span<const Unit> first;               // opens a row, before a digit
    std::span<const Unit> first_negative;      // opens a row, with its minus
    std::span<const Unit> separator;           // before a digit
    std::span<const Unit> separator_negative;  // with the minus that follows
};

inline constexpr std::size_t kDigitRuns = 1110;  // "0".."9", "00".."99", "000".."999"

// Up to four units, stored and copied as four.
template <class Unit>
struct Chunk {
    std::array<Unit, 4> units{};
    std::size_t size = 0;
    bool fits = true;

    void append(std::span<const Unit> more) {
        fits = fits && size + more.size() <= units.size();
        if (!fits) return;
        std::copy(more.begin(), more.end(), units.begin() + static_cast<std::ptrdiff_t>(size));
        size += more.size();
    }
};

// Writes rows of numbers with the units of one table.
template <class Unit>
class NumeralWriter {
  public:
    // digits: a row of units for each run of one, two and three digits, [1111] offsets. A run of
    // digits is cut from the left into pieces of `group` digits, 1 or 3.
    NumeralWriter(std::span<const Unit> digits, std::span<const std::int64_t> offsets,
                  std::span<const Unit> dot, std::size_t group)
        : digits_(digits.begin(), digits.end()),
          offsets_(offsets.begin(), offsets.end()),
          dot_(dot.begin(), dot.end()),
          group_(group) {
        for (std::size_t run = 0; run < kDigitRuns; ++run) {
            Chunk<Unit> chunk;
            append_run(chunk, run);
            keep(chunk, runs_[run], run_size_[run]);
        }
        for (std::size_t n = 0; n < 1000; ++n) {
            const std::size_t run = n < 10 ? n : n < 100 ? 10 + n : 110 + n;
            plain_[n] = runs_[run];
            plain_size_[n] = run_size_[run];
        }
        for (std::size_t run = 0; run < kDigitRuns; ++run) {
            Chunk<Unit> chunk;
            chunk.append(dot_);
            append_run(chunk, run);
            keep(chunk, fractions_[run], fraction_size_[run]);
        }
    }

    // Appends the values with `decimals` (0 to 12), as Python's format(v, ".Nf") would print them.
    void row(std::span<const double> values, int decimals, const Openings<Unit>& openings,
             Units<Unit>& out, Isa isa) const {
        std::array<Chunk<Unit>, 4> opening;
        opening[0].append(openings.first);
        opening[1].append(openings.first_negative);
        opening[2].append(openings.separator);
        opening[3].append(openings.separator_negative);
        const bool narrow = narrow_ && decimals <= ScaledNumbers::kMaxDecimals &&
                            std::ranges::all_of(opening, &Chunk<Unit>::fits);
        ScaledNumbers numbers;
        for (std::size_t at = 0; at < values.size(); at += ScaledNumbers::kBlock) {
            const auto block =
                values.subspan(at, std::min(ScaledNumbers::kBlock, values.size() - at));
            if (narrow) numbers.scale(block, decimals, isa);
            if (narrow && numbers.fits) {
                write_block(block, numbers, decimals, opening, at == 0, out);
                continue;
            }
            for (std::size_t i = 0; i < block.size(); ++i) {
                append_number(block[i], decimals, openings, at + i == 0, out);
            }
        }
    }

  private:
    using Four = std::array<Unit, 4>;
    using Size = std::uint8_t;
    // Of a block: opening, four pieces of the whole part, three of the fraction; four units each.
    static constexpr std::size_t kRoom = 4 * 8;
    static constexpr std::array<std::size_t, 4> kFirstOfWidth = {0, 0, 10, 110};

    std::span<const Unit> digits_of(std::size_t run) const {
        const auto begin = static_cast<std::size_t>(offsets_[run]);
        return std::span(digits_).subspan(begin,
                                          static_cast<std::size_t>(offsets_[run + 1]) - begin);
    }

    // One, two or three digits as `group` takes them.
    void append_run(Chunk<Unit>& chunk, std::size_t run) const {
        if (group_ == 3 || run < 10) return chunk.append(digits_of(run));
        if (run >= 110) chunk.append(digits_of((run - 110) / 100));
        const std::size_t last = run >= 110 ? (run - 110) % 100 : run - 10;
        chunk.append(digits_of(last / 10));
        chunk.append(digits_of(last % 10));
    }

    void keep(const Chunk<Unit>& chunk, Four& units, Size& size) {
        units = chunk.units;
        size = static_cast<Size>(chunk.size);
        narrow_ = narrow_ && chunk.fits;
    }

    static Unit* put(Unit* out, const Four& units, std::size_t size) {
        std::memcpy(out, units.data(), sizeof units);
        return out + size;
    }

    // A number's digits padded to a width of 1 to 3.
    Unit* put_run(Unit* out, std::int32_t number, std::size_t width) const {
        const std::size_t run = kFirstOfWidth[width] + static_cast<std::size_t>(number);
        return put(out, runs_[run], run_size_[run]);
    }

    // Digits padded to `width`, in pieces of three from the left.
    Unit* put_digits(Unit* out, std::int32_t number, std::size_t width) const {
        for (; width > 3; width -= 3) {
            const std::int32_t power = kPowerOfTen[width - 3];
            out = put_run(out, number / power, 3);
            number %= power;
        }
        return put_run(out, number, width);
    }

    Unit* put_whole(Unit* out, std::int32_t number) const {
        if (number < 1000) {
            const auto n = static_cast<std::size_t>(number);
            return put(out, plain_[n], plain_size_[n]);
        }
        if (group_ == 1) return put_run(put_whole(out, number / 1000), number % 1000, 3);
        std::size_t width = 4;
        while (width < 10 && number >= kPowerOfTen[width]) ++width;
        return put_digits(out, number, width);
    }

    Unit* put_fraction(Unit* out, std::int32_t number, std::size_t decimals) const {
        if (decimals <= 3) {
            const std::size_t run = kFirstOfWidth[decimals] + static_cast<std::size_t>(number);
            return put(out, fractions_[run], fraction_size_[run]);
        }
        const std::int32_t power = kPowerOfTen[decimals - 3];
        out = put_fraction(out, number / power, 3);
        return put_digits(out, number % power, decimals - 3);
    }

    void write_block(std::span<const double> values, const ScaledNumbers& numbers, int decimals,
                     const std::array<Chunk<Unit>, 4>& opening, bool opens,
                     Units<Unit>& out) const {
        Unit* at = out.room(values.size() * kRoom + 4);  // four more: pieces are copied as four
        const auto width = static_cast<std::size_t>(decimals);
        const Four* fractions = &fractions_[kFirstOfWidth[std::min<std::size_t>(width, 3)]];
        const Size* sizes = &fraction_size_[kFirstOfWidth[std::min<std::size_t>(width, 3)]];
        const bool tabled = numbers.small && width >= 1 && width <= 3;
        for (std::size_t i = 0; i < values.size(); ++i) {
            const std::size_t kind = opens && i == 0 ? 0 : 2;
            const Chunk<Unit>& chunk = opening[kind + std::size_t{std::signbit(values[i])}];
            at = put(at, chunk.units, chunk.size);
            const auto whole = static_cast<std::size_t>(numbers.whole[i]);
            const auto fraction = static_cast<std::size_t>(numbers.fraction[i]);
            if (tabled) {
                at = put(at, plain_[whole], plain_size_[whole]);
                at = put(at, fractions[fraction], sizes[fraction]);
            } else {
                at = put_whole(at, numbers.whole[i]);
                if (width > 0) at = put_fraction(at, numbers.fraction[i], width);
            }
        }
        out.end_at(at);
    }

    // Any number and any table: by way of its text.
    void append_number(double value, int decimals, const Openings<Unit>& openings, bool opens,
                       Units<Unit>& out) const {
        std::array<char, 192> buffer;  // sign, 151 digits of kMaxMagnitude, dot, 12 decimals
        const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                       std::chars_format::fixed, decimals)
                             .ptr;
        std::string_view text(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
        const bool negative = text.front() == '-';
        if (negative) text.remove_prefix(1);
        out.append(opens ? (negative ? openings.first_negative : openings.first)
                         : (negative ? openings.separator_negative : openings.separator));
        const std::size_t dot = text.find('.');
        append_digits(text.substr(0, dot), out);
        if (dot == std::string_view::npos) return;
        out.append(dot_);
        append_digits(text.substr(dot + 1), out);
    }

    void append_digits(std::string_view digits, Units<Unit>& out) const {
        for (std::size_t at = 0; at < digits.size(); at += group_) {
            const std::string_view piece = digits.substr(at, group_);
            std::size_t number = 0;
            for (const char digit : piece) {
                number = number * 10 + static_cast<std::size_t>(digit - '0');
            }
            out.append(digits_of(kFirstOfWidth[piece.size()] + number));
        }
    }

    std::vector<Unit> digits_;
    std::vector<std::int64_t> offsets_;
    std::vector<Unit> dot_;
    std::size_t group_;
    bool narrow_ = true;  // every piece is at most four units
    std::array<Four, kDigitRuns> runs_;
    std::array<Four, kDigitRuns> fractions_;  // the same behind the dot
    std::array<Four, 1000> plain_;            // without leading zeros
    std::array<Size, kDigitRuns> run_size_;
    std::array<Size, kDigitRuns> fraction_size_;
    std::array<Size, 1000> plain_size_;
};

}  // namespace lineup
