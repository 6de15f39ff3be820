;; Kernels that attack. Parameters lie in slots of 8 bytes.
(module
  (import "env" "memory" (memory 2))
  (global $__stack_pointer (mut i32) (i32.const 65536))
  (export "__stack_pointer" (global $__stack_pointer))

  ;; scribble(words, bytes: i64, rounds: i64): writes all bits into every word of a buffer, round and round;
  ;; for ever, with no rounds
  (func (export "scribble") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (local $at i32) (local $end i32) (local $rounds i64)
    (local.set $end (i32.add (i32.load (local.get $args)) (i32.load offset=8 (local.get $args))))
    (local.set $rounds (i64.load offset=16 (local.get $args)))
    (loop $round
      (local.set $at (i32.load (local.get $args)))
      (loop $word
        (i64.store (local.get $at) (i64.const -1))
        (local.set $at (i32.add (local.get $at) (i32.const 8)))
        (br_if $word (i32.lt_u (local.get $at) (local.get $end))))
      (local.set $rounds (i64.sub (local.get $rounds) (i64.const 1)))
      (br_if $round (i64.ne (local.get $rounds) (i64.const 0))))))
