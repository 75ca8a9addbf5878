// SPDX-License-Identifier: Apache-2.0 OR MIT

// go-redis as `check clients` runs it: library defaults, every reply verified.
//
// Usage: client HOST PORT PROTOCOL REPEATS PREFIX. One JSON line per event on
// stdout; after "connected" it waits for a line on stdin, after "done" the
// connection stays open until stdin closes.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

func say(event map[string]string) {
	line, _ := json.Marshal(event)
	fmt.Println(string(line))
}

// expect turns an error or an unexpected value into an error that names the step.
func expect[T comparable](what string, got T, err error, want T) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if got != want {
		return fmt.Errorf("%s: got %v, expected %v", what, got, want)
	}
	return nil
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func pipelined(ctx context.Context, c *redis.Client, key string) error {
	pipe := c.Pipeline()
	var gets []*redis.StringCmd
	for i := 0; i < 10; i++ {
		pipe.Set(ctx, key, i, 0)
		gets = append(gets, pipe.Get(ctx, key))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("pipeline: %w", err)
	}
	for i, get := range gets {
		if err := expect("pipeline GET", get.Val(), get.Err(), strconv.Itoa(i)); err != nil {
			return err
		}
	}
	return nil
}

func work(ctx context.Context, c *redis.Client, repeats int, prefix string) error {
	key, counter, gone := prefix+":k", prefix+":n", prefix+":gone"
	if err := c.Del(ctx, key, counter, gone).Err(); err != nil {
		return fmt.Errorf("DEL before the run: %w", err)
	}
	set := func(k, v string) error {
		got, err := c.Set(ctx, k, v, 0).Result()
		return expect("SET", got, err, "OK")
	}
	get := func(k, v string) error {
		got, err := c.Get(ctx, k).Result()
		return expect("GET", got, err, v)
	}
	incr := func(n int64) error {
		got, err := c.Incr(ctx, counter).Result()
		return expect("INCR", got, err, n)
	}
	expire := func() error {
		got, err := c.Expire(ctx, gone, 24*time.Hour).Result()
		return expect("EXPIRE", got, err, true)
	}
	del := func() error {
		got, err := c.Del(ctx, gone).Result()
		return expect("DEL", got, err, int64(1))
	}
	absent := func() error {
		got, err := c.Get(ctx, gone).Result()
		if !errors.Is(err, redis.Nil) {
			return fmt.Errorf("GET after DEL: got %q, %v, expected nil", got, err)
		}
		return nil
	}
	if err := first(set(key, "value"), get(key, "value"), incr(1), incr(2), incr(3),
		set(gone, "\r\n\x00\xff"), get(gone, "\r\n\x00\xff"), expire(), del(), absent(),
		pipelined(ctx, c, key)); err != nil {
		return err
	}
	for turn := 0; turn < repeats; turn++ {
		if err := get(key, "9"); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	protocol, _ := strconv.Atoi(os.Args[3])
	repeats, _ := strconv.Atoi(os.Args[4])
	ctx := context.Background()
	c := redis.NewClient(&redis.Options{
		Addr:     net.JoinHostPort(os.Args[1], os.Args[2]),
		Protocol: protocol,
	})
	stdin := bufio.NewReader(os.Stdin)
	pong, err := c.Ping(ctx).Result()
	err = expect("PING", pong, err, "PONG")
	if err == nil {
		say(map[string]string{"event": "connected", "version": redis.Version()})
		_, err = stdin.ReadString('\n') // pipelines have a pool of their own: one connection until then
	}
	if err == nil {
		err = work(ctx, c, repeats, os.Args[5])
	}
	if err != nil {
		say(map[string]string{"event": "failed", "error": err.Error()})
	} else {
		say(map[string]string{"event": "done"})
	}
	_, _ = io.Copy(io.Discard, stdin)
	_ = c.Close()
}
