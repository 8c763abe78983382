package bench

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// child is a process that runs Serve.
type child struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	address string
}

func startChild(command []string, n Node) (_ *child, err error) {
	if len(command) == 0 {
		return nil, errors.New("no command for the server's process")
	}
	text, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(command[0], append(command[1:], string(text))...)}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the server's process: %w", err)
	}
	first, err := c.read()
	if err != nil {
		return nil, errors.Join(err, c.stop())
	}
	c.address = first.Address
	return c, nil
}

func (c *child) read() (a answer, err error) {
	if !c.out.Scan() {
		return a, errors.Join(errors.New("the server's process ended"), c.out.Err())
	}
	if err := json.Unmarshal(c.out.Bytes(), &a); err != nil {
		return a, fmt.Errorf("read from the server's process: %w", err)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

func (c *child) ask(o order) (answer, error) {
	if err := json.NewEncoder(c.in).Encode(o); err != nil {
		return answer{}, fmt.Errorf("write to the server's process: %w", err)
	}
	return c.read()
}

// stop closes the child's input, which ends it, and waits; one that does not end is killed.
func (c *child) stop() error {
	c.in.Close()
	kill := time.AfterFunc(2*nodeTimeout, func() { c.cmd.Process.Kill() })
	defer kill.Stop()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("the server's process: %w", err)
	}
	return nil
}

// kill ends the child at once, as a crash would, and waits.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait() // it says that it was killed
	c.in.Close()
}
