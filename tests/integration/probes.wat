;; Small kernels that do one thing each, some of them wrong. Parameters lie in slots of 8 bytes.
(module
  (import "env" "memory" (memory 2))
  (global $__stack_pointer (mut i32) (i32.const 65536))
  (export "__stack_pointer" (global $__stack_pointer))
  (data (i32.const 65536) "pristine")

  ;; copy(from, to, bytes: i64)
  (func (export "copy") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (memory.copy (i32.load offset=8 (local.get $args)) (i32.load (local.get $args))
                 (i32.load offset=16 (local.get $args))))

  ;; fill(to, byte: i64, bytes: i64)
  (func (export "fill") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (memory.fill (i32.load (local.get $args)) (i32.load offset=8 (local.get $args))
                 (i32.load offset=16 (local.get $args))))

  ;; store(to, value: i64)
  (func (export "store") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (i64.store (i32.load (local.get $args)) (i64.load offset=8 (local.get $args))))

  ;; global(seen): 8 bytes of module data as found, which are then overwritten
  (func (export "global") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (i64.store (i32.load (local.get $args)) (i64.load (i32.const 65536)))
    (i64.store (i32.const 65536) (i64.const -1)))

  ;; work(rounds: i64): takes a while
  (func (export "work") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (local $x f64) (local $left i64)
    (local.set $left (i64.load (local.get $args)))
    (loop $again
      (local.set $x (f64.sqrt (f64.add (local.get $x) (f64.const 1))))
      (local.set $left (i64.sub (local.get $left) (i64.const 1)))
      (br_if $again (i64.gt_s (local.get $left) (i64.const 0))))
    (f64.store (i32.const 0) (local.get $x)))

  ;; spin(): never ends
  (func (export "spin") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (loop $again (br $again)))

  ;; trap()
  (func (export "trap") (param $args i32) (param $launch i32) (param $first i64) (param $count i64) unreachable))
