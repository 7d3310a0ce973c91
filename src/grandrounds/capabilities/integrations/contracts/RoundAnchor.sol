// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// Hashes of training rounds, written once by those who may and read by anyone.
///
/// Rounds of a run only go up: what is anchored, or was passed over, is never written again. The first to anchor a run owns
/// it, so registered writers cannot write into each other's. Nothing here can change or remove a hash, not even the owner.
contract RoundAnchor {
    /// Rounds `first` to `last`. One round: the hash of its ledger entry. Several: the RFC 6962 root over those hashes.
    struct Span {
        uint64 first;
        uint64 last;
        bytes32 hash;
    }

    /// Who anchors a run, and the lowest round that can still be anchored.
    struct Run {
        address writer;
        uint64 next;
    }

    /// Rounds that one root can stand for: a reader looks back no further than this.
    uint64 public constant LONGEST = 1024;

    address public owner;
    mapping(address account => bool) public isWriter;
    mapping(bytes32 run => Run) public runs;
    mapping(bytes32 run => mapping(uint64 first => bytes32)) private _hash;
    mapping(bytes32 run => mapping(uint64 first => uint64)) private _last; // of spans of several rounds only

    event WriterSet(address indexed account, bool registered);
    event Anchored(bytes32 indexed run, uint64 indexed first, uint64 indexed last, bytes32 hash, address writer);

    error NotTheOwner(address owner);
    error NotAWriter(address account);
    error RunOfAnother(address writer);
    error RoundPassed(uint64 next);
    error NotASpan(uint64 first, uint64 last);
    error NoHash();

    /// Whoever deploys it is its owner and first writer.
    constructor() {
        owner = msg.sender;
        _setWriter(msg.sender, true);
    }

    /// Register a writer, or take that back: what they anchored stays.
    function setWriter(address account, bool registered) external {
        if (msg.sender != owner) revert NotTheOwner(owner);
        _setWriter(account, registered);
    }

    /// Anchor one round.
    function anchor(bytes32 run, uint64 round, bytes32 hash) external {
        _write(run, round, round, hash);
    }

    /// Anchor two or more rounds under one root.
    function anchorBatch(bytes32 run, uint64 first, uint64 last, bytes32 root) external {
        if (last <= first || last - first >= LONGEST) revert NotASpan(first, last);
        _write(run, first, last, root);
        _last[run][first] = last;
    }

    /// The span that a round is in; its hash is zero where there is none.
    function anchored(bytes32 run, uint64 round) external view returns (Span memory) {
        for (uint64 back = 0; back < LONGEST && back <= round; back++) {
            Span memory span = _startingAt(run, round - back);
            if (span.hash != 0) return span.last >= round ? span : Span(0, 0, 0);
        }
        return Span(0, 0, 0);
    }

    /// All spans that start in rounds `from` to `to`, in their order: a long run is read in pages.
    function spans(bytes32 run, uint64 from, uint64 to) external view returns (Span[] memory found) {
        uint256 count = 0;
        for (uint64 first = from; first <= to; first++) {
            if (_hash[run][first] != 0) count++;
        }
        found = new Span[](count);
        uint256 filled = 0;
        for (uint64 first = from; first <= to; first++) {
            if (_hash[run][first] != 0) found[filled++] = _startingAt(run, first);
        }
    }

    function _setWriter(address account, bool registered) private {
        isWriter[account] = registered;
        emit WriterSet(account, registered);
    }

    function _write(bytes32 run, uint64 first, uint64 last, bytes32 hash) private {
        if (!isWriter[msg.sender]) revert NotAWriter(msg.sender);
        if (hash == 0) revert NoHash();
        Run memory held = runs[run];
        if (held.writer != address(0) && held.writer != msg.sender) revert RunOfAnother(held.writer);
        if (first < held.next) revert RoundPassed(held.next);
        runs[run] = Run(msg.sender, last + 1);
        _hash[run][first] = hash;
        emit Anchored(run, first, last, hash, msg.sender);
    }

    function _startingAt(bytes32 run, uint64 first) private view returns (Span memory) {
        uint64 last = _last[run][first];
        return Span(first, last == 0 ? first : last, _hash[run][first]);
    }
}
