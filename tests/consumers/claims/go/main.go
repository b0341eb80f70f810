// Reads a payload by its claim check: reader URL SIZE SHA256. Writes the payload to standard output.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// payload is the payload of a record: its value, or what its headers refer to.
func payload(ctx context.Context, client *s3.Client, value []byte, headers map[string]string) ([]byte, error) {
	url, found := headers["claim-check-url"]
	if !found {
		return value, nil
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(url, "s3://"), "/")
	object, err := client.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		return nil, err
	}
	defer object.Body.Close()
	content, err := io.ReadAll(object.Body)
	if err != nil {
		return nil, err
	}
	if strconv.Itoa(len(content)) != headers["claim-check-size"] {
		return nil, errors.New("the object has another size than the payload")
	}
	digest := sha256.Sum256(content)
	if hex.EncodeToString(digest[:]) != headers["claim-check-sha256"] {
		return nil, errors.New("the object has another digest than the payload")
	}
	return content, nil
}

func main() {
	ctx := context.Background()
	headers := map[string]string{
		"claim-check-url": os.Args[1], "claim-check-size": os.Args[2], "claim-check-sha256": os.Args[3],
	}
	// Login, region and endpoint are those of the environment. A store that is not AWS needs UsePathStyle.
	settings, err := config.LoadDefaultConfig(ctx)
	if err == nil {
		client := s3.NewFromConfig(settings, func(options *s3.Options) { options.UsePathStyle = true })
		var content []byte
		content, err = payload(ctx, client, nil, headers)
		os.Stdout.Write(content)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
